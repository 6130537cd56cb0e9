"""The scripts by which messages leave with the success of a task, or nothing does (TP1-9, EMS-11)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery

from celery_poison import install
from celery_poison.errors import LedgerUnavailable, StaleDelivery
from celery_poison.extensions.outbox.lanes import Lanes
from celery_poison.extensions.outbox.tied import SEND, Tied
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.scripts import script
from celery_poison.model import Start
from celery_poison.policy import Policy
from celery_poison.upstream.requests import StaleCompletion

MID = "m1"
START = Start.of("boot.1", "node/boot", "id1", "t", queue="q", at_ms=1, deliveries=1)
ROWS = [("a", b"one"), ("b", b"two"), ("a", b"\x00three")]


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        yield Ledger(client, Keys("tied"))


def _runs(ledger: Ledger, start: Start = START) -> None:
    ledger.client.hset(ledger.keys.running, MID, start.encode())


def _left(ledger: Ledger) -> list[tuple[bytes, str]]:
    """What is in the outbox, in the order in which it came there."""
    rows = []
    for lane in ("a", "b"):
        found: Any = ledger.client.zrange(ledger.keys.lane(lane), 0, -1, withscores=True)
        rows += [(seq, packed, lane) for packed, seq in found]
    return [(packed, lane) for _, packed, lane in sorted(rows)]


def _ends(ledger: Ledger) -> None:
    """What its own process sends with its end, in one step."""
    wanted = script(SEND)
    keys = wanted.keys_of({**ledger.keys.fixed, "tied": ledger.keys.tied(START.token)})
    words = wanted.values_of({"mid": MID, "token": START.token, "lanes": ledger.keys.lane("")})
    ledger.client.hset(ledger.keys.done, START.token, "D")
    ledger.client.eval(wanted.text, len(keys), *keys, *words)


ALL = [(b"one", "a"), (b"two", "b"), (b"\x00three", "a")]


def test_TP1_9_what_is_tied_leaves_with_its_end_in_order_and_once(ledger: Ledger) -> None:
    _runs(ledger)
    Lanes(ledger).tie(MID, START, ROWS)
    assert not _left(ledger)
    for _ in range(2):
        _ends(ledger)
    assert _left(ledger) == ALL and not ledger.client.exists(ledger.keys.tied(START.token))


@pytest.mark.parametrize("how", ["newer start", "declared dead", "ended"])
def test_EMS_11_a_stale_attempt_is_refused_and_nothing_of_it_leaves(ledger: Ledger, how: str) -> None:
    if how == "newer start":
        _runs(ledger, START._replace(token="boot.2"))
    elif how == "declared dead":
        ledger.client.zadd(ledger.keys.buried, {START.worker: 1})
    else:
        ledger.client.hset(ledger.keys.done, START.token, "I")
    with pytest.raises(StaleDelivery):
        Lanes(ledger).tie(MID, START, ROWS)
    _ends(ledger)
    assert not _left(ledger)


def test_EMS_11_what_was_reclaimed_under_a_new_name_is_its_workers_again(ledger: Ledger) -> None:
    ledger.client.zadd(ledger.keys.buried, {START.worker: 1})
    _runs(ledger, START._replace(worker="node/bootr1"))
    Lanes(ledger).tie(MID, START, ROWS)
    _ends(ledger)
    assert len(_left(ledger)) == 3


def test_TP1_9_a_start_that_arrives_later_by_its_own_connection_is_no_stale_one(ledger: Ledger) -> None:
    Lanes(ledger).tie(MID, START, ROWS)
    _ends(ledger)
    assert len(_left(ledger)) == 3


@pytest.mark.parametrize("what", ["interrupt", "crash"])
def test_TP1_9_of_an_attempt_that_came_to_grief_nothing_leaves(ledger: Ledger, what: str) -> None:
    _runs(ledger)
    Lanes(ledger).tie(MID, START, ROWS)
    if what == "interrupt":
        ledger.messages.interrupt(MID, START, cause="shutdown")
    else:
        ledger.messages.crash(MID, START, cause="signal:9", shared=False)
    _ends(ledger)
    ledger.messages.clean_up([(MID, START.token)])
    assert not _left(ledger)


def test_TP1_9_where_the_end_was_lost_on_the_way_the_acknowledgement_lets_it_leave(ledger: Ledger) -> None:
    _runs(ledger)
    Lanes(ledger).tie(MID, START, ROWS)
    ledger.messages.clean_up([(MID, START.token)])
    assert _left(ledger) == ALL


def test_TP1_9_of_a_dead_worker_whose_result_is_stored_it_leaves(ledger: Ledger) -> None:
    _runs(ledger)
    Lanes(ledger).tie(MID, START, ROWS)
    ledger.client.set(ledger.keys.monitor_fence, 1)
    ledger.messages.finish(MID, START, fence=1)
    assert _left(ledger) == ALL


class Away:
    """A ledger that cannot tie."""

    keys = Keys("tied")

    def __init__(self, error: Exception) -> None:
        self._error, self.scripts = error, self

    def call(self, *args: Any, **words: Any) -> None:
        raise self._error


def _tied(error: Exception, *, fail_open: bool = True) -> tuple[Tied, Celery]:
    """A run that has published one message, and its app."""
    app = Celery("tied", set_as_current=False, broker="memory://")
    install(app, poison_redis_url="redis://", poison_fail_open=fail_open)
    task, ticket = SimpleNamespace(name="t", app=app), SimpleNamespace(mid=MID)
    recorder = SimpleNamespace(policy=lambda name: Policy())
    tied = Tied(*map(partial(cast, Any), (recorder, Away(error), task, ticket)), START)
    with tied.publishing():
        app.send_task("shop.mail", ["hello"], queue="mails")
    return tied, app


def _sent(app: Celery) -> list[Any]:
    with app.connection_for_read() as connection, connection.SimpleQueue("mails") as queue:
        return [queue.get(block=False).payload[0]] if queue.qsize() else []


def test_EMS_11_the_task_hears_that_its_attempt_is_stale_and_nothing_leaves() -> None:
    tied, app = _tied(StaleDelivery("a newer start"))
    with pytest.raises(StaleCompletion):
        tied.keep()
    assert not tied and tied.at_the_end(succeeded=True) == b"" and not _sent(app)


def test_TP1_9_while_redis_is_away_it_leaves_as_soon_as_the_body_has_returned() -> None:
    tied, app = _tied(LedgerUnavailable("away"))
    assert not _sent(app), "held back meanwhile"
    tied.keep()
    assert _sent(app) == [["hello"]] and tied.at_the_end(succeeded=True) == b""


def test_TP1_9_with_fail_open_off_the_task_fails_and_nothing_leaves() -> None:
    tied, app = _tied(LedgerUnavailable("away"), fail_open=False)
    with pytest.raises(LedgerUnavailable):
        tied.keep()
    assert not _sent(app)
