"""What is paused, in the ledger: each change one step, told in the journal; copies follow the version."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.errors import LedgerUnavailable, MessageNotFound
from celery_poison.extensions.holds.pauses import HoldPauses, Pause, Paused, Scope, holding
from celery_poison.extensions.holds.pausing import Pausing
from celery_poison.fleet.parking import Parking
from celery_poison.keep.stored_message import pack
from celery_poison.ledger import Keys, Ledger, policies
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Start, StoredMessage
from celery_poison.plugin import plugin_of
from celery_poison.settings import Settings
from tests.apps.harness import Fleet
from tests.sites import site


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        yield Ledger(client, Keys())


def _pause(ledger: Ledger, scope: Scope, name: str, note: str = "why") -> int:
    return HoldPauses(ledger).pause(scope, name, actor="ann", note=note, journalled=f"{scope} {name}: {note}")


def _resume(ledger: Ledger, scope: Scope, name: str) -> int:
    return HoldPauses(ledger).resume(scope, name, actor="bob", journalled=f"{scope} {name}")


def test_a_pause_and_its_end_are_one_step_each_and_journalled_with_who_and_why(ledger: Ledger) -> None:
    first = _pause(ledger, Scope.QUEUE, "a:b")
    second = _pause(ledger, Scope.TASK, "shop.convert")
    assert 0 < first < second == policies.version(ledger, ledger.keys.paused)
    found = holding(ledger)
    assert [(pause.scope, pause.name, pause.actor, pause.note) for pause in found] == [
        (Scope.QUEUE, "a:b", "ann", "why"),
        (Scope.TASK, "shop.convert", "ann", "why"),
    ]
    assert _resume(ledger, Scope.QUEUE, "a:b") > second
    with pytest.raises(MessageNotFound, match="queue a:b is not paused"):
        _resume(ledger, Scope.QUEUE, "a:b")
    wanted = ("event", "queue", "task", "actor", "note")
    assert [tuple(entry[name] for name in wanted) for entry in ledger.read.journal()] == [
        ("paused", "a:b", "", "ann", "queue a:b: why"),
        ("paused", "", "shop.convert", "ann", "task shop.convert: why"),
        ("resumed", "a:b", "", "bob", "queue a:b"),
    ]


def test_a_copy_tells_what_has_changed_since_it_was_refreshed_last(ledger: Ledger) -> None:
    copy = Paused(ledger)
    assert copy.refresh() == ({}, {}) and not copy.stops("q", "t")
    _pause(ledger, Scope.QUEUE, "q")
    _pause(ledger, Scope.TASK, "t")
    assert not copy.stops("q", "t"), "nobody asks Redis for each message"
    begun, ended = copy.refresh()
    assert [pause.name for pause in begun.values()] == ["q", "t"] and not ended
    assert copy.stops("q", "another") and copy.stops("another", "t") and not copy.stops("t", "q")
    assert copy.refresh() == ({}, {})
    _resume(ledger, Scope.QUEUE, "q")
    begun, ended = copy.refresh()
    assert not begun and [pause.name for pause in ended.values()] == ["q"]
    assert not copy.stops("q", "another") and copy(Scope.TASK, "t")


def test_a_parked_message_that_asks_as_of_now_takes_no_news_from_its_worker(ledger: Ledger) -> None:
    calls: list[object] = []
    parts: Any = {"me": SimpleNamespace(node="w1@h"), "loop": SimpleNamespace(call_in_loop=calls.append)}
    parts["loop"].consumer = object()
    pausing = Pausing(site(settings=Settings(), ledger=ledger, complain=calls.append, **parts))
    _pause(ledger, Scope.QUEUE, "q")
    _pause(ledger, Scope.TASK, "t")
    assert pausing.parks("t", as_of_now=True) and not pausing.parks("another", as_of_now=True)
    assert not calls
    pausing.refresh(is_up=True)
    assert len(calls) == 2, "it stops to consume the queue, and puts back what waits"
    assert pausing.stops("q", "another", object())


@pytest.mark.parametrize("garbage", ["", "{", "[]", '"x"', '{"since_ms": "soon"}', "[" * 9999])
def test_garbage_among_the_pauses_is_told_and_the_others_hold(ledger: Ledger, garbage: str) -> None:
    _pause(ledger, Scope.QUEUE, "q")
    for field in ("task:t", "tomorrows:x", "queue:", "x"):
        ledger.client.hset(ledger.keys.paused, field, garbage)
    complaints: list[Exception] = []
    copy = Paused(ledger, complaints.append)
    copy.refresh()
    assert copy(Scope.QUEUE, "q") and not copy(Scope.TASK, "t")
    assert len(complaints) == 4 and "is ignored: it is no pause" in str(complaints[0])


def test_a_pause_says_in_a_sentence_who_and_why() -> None:
    pause = Pause(scope=Scope.TASK, name="t", actor="ann")
    assert pause.story == "task t is paused by ann"
    noted = Pause(scope=Scope.QUEUE, name="q", actor="ann", note="why")
    assert noted.story == "queue q is paused by ann: why"


def test_what_is_parked_of_a_paused_task_stays_until_it_is_resumed(fleet: Fleet) -> None:
    plugin = plugin_of(fleet.app)
    ledger, parking = plugin.open_ledger(), Parking(fleet.app, plugin.open_ledger(), plugin.settings)
    parcel = pack(StoredMessage(body=b"x", content_type="", content_encoding=""))
    for mid, task in (("m1", "t"), ("m2", "another")):
        start = Start("C", f"b.{mid}", "w/b", 7, 1, 1, 0, f"id-{mid}", task, "celery", 2, 5, 10, 1)
        assert ledger.parking.park(mid, b"", start, number=0, parcel=parcel)
    _pause(ledger, Scope.TASK, "t")
    assert parking.round() == 1 and parking.round() == 0
    assert [parked.start.task for _, parked in ledger.read.parked_now()] == ["t"]
    _resume(ledger, Scope.TASK, "t")
    assert parking.round() == 1


def _suspend(ledger: Ledger, node: str, queue: str = "a b", most: int = 2, lasts_ms: int = 60_000) -> bool:
    told = {"worker": f"{node}/b", "reason": "3 failures in a row"}
    return HoldPauses(ledger).suspend(node, queue, lasts_ms=lasts_ms, most=most, **told)


def test_WAS_6_no_more_workers_are_suspended_from_a_queue_than_may_be(ledger: Ledger) -> None:
    assert _suspend(ledger, "w1@h") and _suspend(ledger, "w2@h")
    assert not _suspend(ledger, "w3@h")
    assert _suspend(ledger, "w1@h"), "anew"
    assert _suspend(ledger, "w3@h", "another queue"), "each queue by itself"
    assert HoldPauses(ledger).end_suspension("w2@h", "a b", worker="w2@h/b")
    assert not HoldPauses(ledger).end_suspension("w2@h", "a b", worker="w2@h/b")
    assert _suspend(ledger, "w3@h")
    assert [entry["event"] for entry in ledger.read.journal()] == [
        *["endpoint_suspended"] * 4,
        "endpoint_resumed",
        "endpoint_suspended",
    ]


def test_WAS_6_a_suspension_whose_time_is_over_counts_for_nothing_and_is_forgotten(ledger: Ledger) -> None:
    assert _suspend(ledger, "w1@h", lasts_ms=-1)
    assert not holding(ledger)
    assert _suspend(ledger, "w2@h", most=1)
    (pause,) = holding(ledger)
    assert (pause.scope, pause.name, pause.worker) == (Scope.ENDPOINT, "a b", "w2@h")
    assert pause.until is not None and round(pause.until - pause.since) == 60
    assert len(policies.read(ledger, ledger.keys.paused)[1]) == 1


def test_WAS_6_a_copy_tells_a_node_how_long_it_stays_suspended(ledger: Ledger) -> None:
    _suspend(ledger, "w1@h")
    _suspend(ledger, "w2@h", "other")
    copy = Paused(ledger)
    copy.refresh()
    (left,) = [copy.suspensions_of("w1@h")]
    assert left.keys() == {"a b"} and 55 < left["a b"] <= 60
    assert not copy.stops("a b", "t"), "other workers go on"


def test_while_redis_is_away_what_was_paused_stays_so_and_nothing_else_is(ledger: Ledger) -> None:
    _pause(ledger, Scope.QUEUE, "q")
    copy = Paused(ledger)
    copy.refresh()
    ledger.client = open_redis("redis://127.0.0.1:1/0")
    with pytest.raises(LedgerUnavailable):
        copy.refresh()
    assert copy.stops("q", "t") and not copy.stops("another", "t")
