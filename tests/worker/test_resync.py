"""After a disturbance a worker ends the starts on record that it does not know (NEW-9)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_poison import causes
from celery_poison.broker.amqp.kind import AmqpBroker
from celery_poison.fleet.parking import Parking
from celery_poison.keep.stored_message import original, pack
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Ended, Phase, Start
from celery_poison.worker import inflight as settling
from celery_poison.worker.inflight import Acknowledged, DeferredCleanup, InFlight
from celery_poison.worker.lease import Incarnation
from celery_poison.worker.resync import Resync, ResyncWindow
from celery_poison.worker.threads import Background
from tests.broker.kit import Site
from tests.sites import on_site

NOBODY = 2**22 + 1  # above the largest pid of Linux


class Here:
    """One worker's memory, and the ledger that it shares with others."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.queries = ledger, ledger.read
        self.me = Incarnation("w1@h")
        self.inflight, self.deferred_cleanup = InFlight(), DeferredCleanup(ledger)
        self.later: list[Callable[[], Any]] = []
        self.books: Any = SimpleNamespace(owes_acknowledgements=False)
        self.loop_has_run_until = math.inf
        background = cast(Background, SimpleNamespace(do=self.later.append))
        loop: Any = SimpleNamespace(has_run_until=lambda: self.loop_has_run_until)
        self.resync = on_site(
            Resync,
            ledger=ledger,
            policies={},
            me=self.me,
            pause=0.0,
            window=ResyncWindow(1.0),
            deferred_cleanup=self.deferred_cleanup,
            inflight=self.inflight,
            background=background,
            loop=loop,
            books=self.books,
        )

    def start(self, mid: str, phase: str = "R", pid: int = NOBODY, worker: str = "") -> Start:
        """Put a start on record."""
        owner, token = worker or self.me.worker, self.me.next_token()
        start = Start(phase, token, owner, pid, 1, 1, 0, f"id-{mid}", "t", "q", 2, 5, 1, 1)
        self.ledger.client.hset(self.ledger.keys.running, mid, start.encode())
        return start

    def ended(self, start: Start) -> None:
        self.ledger.client.hset(self.ledger.keys.done, start.token, Ended.DONE.value)

    def running(self) -> set[str]:
        return {mid for mid, _, _ in self.queries.running()}

    def do_what_is_due(self) -> None:
        jobs, self.later[:] = list(self.later), []
        for job in jobs:
            job()


@pytest.fixture
def here(redis_url: str) -> Iterator[Here]:
    with open_redis(redis_url) as client:
        yield Here(Ledger(client, Keys("ns")))


@pytest.mark.parametrize("phase", [Phase.CLAIMED, Phase.ADMITTING])
def test_NEW_9_a_claim_that_nobody_here_knows_is_taken_back_at_the_second_look(
    here: Here, phase: Phase
) -> None:
    """Its delivery was dropped with its connection; a copy elsewhere would wait for it for ever."""
    here.start("m", phase.value, pid=os.getpid())
    here.resync.disturbed()
    here.resync.recheck()
    assert here.running() == {"m"}, "it may be on its way from one hand to another at this moment"
    here.resync.recheck()
    assert not here.running()


def test_NEW_24_what_is_forgotten_while_it_is_told_again_is_forgotten_once_more(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger whose slot moves lets one thread wait for its answer while another one cleans up."""
    monkeypatch.setattr(settling, "DELAY", 0.0)
    start = here.start("m")
    here.ended(start)
    here.deferred_cleanup.add(Acknowledged(0.0, "m", start.token, "id-m", "t"))
    really = here.ledger.messages.resync

    def slow(starts: Any) -> int:
        here.deferred_cleanup.clean_up()
        return really(starts)

    monkeypatch.setattr(here.ledger.messages, "resync", slow)
    here.resync._remind(here.deferred_cleanup.recent())
    here.do_what_is_due()
    assert here.running() == {"m"}, "it is on record again"
    here.deferred_cleanup.clean_up()
    assert not here.running() and not here.ledger.client.hlen(here.ledger.keys.done)


@pytest.mark.parametrize("where", ["let in", "in the pool", "undecided"])
def test_NEW_9_what_is_on_its_way_here_is_left_alone(here: Here, where: str) -> None:
    start = here.start("m", "C")
    if where == "let in":
        here.inflight.let_in(start.token)
    elif where == "in the pool":
        here.inflight.went_to_pool(start.token, object())
    else:
        here.inflight.undecided.add(_Request(start))
    here.resync.disturbed()
    for _ in range(3):
        here.resync.recheck()
    assert here.running() == {"m"}


class _Request:
    def __init__(self, start: Start) -> None:
        self.start = lambda: start


def test_NEW_9_a_start_that_runs_in_a_living_process_is_left_alone(here: Here) -> None:
    """It began although it was thought dropped: only its process knows."""
    here.start("lives", pid=os.getpid())
    here.start("gone", pid=NOBODY)
    here.resync.disturbed()
    for _ in range(3):
        here.resync.recheck()
    assert here.running() == {"lives"}
    assert [entry["id"] for entry in here.queries.journal()] == ["id-gone"], "nobody is to blame"
    assert here.queries.journal()[0]["event"] == "interrupted"
    assert not [*here.queries.candidates()]


def test_NEW_9_nobody_else_is_meddled_with(here: Here) -> None:
    here.start("other", "C", worker="w2@h/boot")
    here.resync.disturbed()
    for _ in range(3):
        here.resync.recheck()
    assert here.running() == {"other"}


def test_NEW_9_a_start_that_ended_here_is_told_so_kept_for_its_copy_and_forgotten_later(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis has forgotten that it ended, and took it for running as long as this worker lived."""
    start = here.start("m")
    here.inflight.left_pool(start.token, ended_well=True)
    here.resync.disturbed()
    here.resync.recheck()
    here.resync.recheck()
    assert [*here.queries.ends([start.token])] == [Ended.DONE] and here.running() == {"m"}
    here.resync.clean_up()
    assert here.running() == {"m"}, "for as long as a copy of it may come"
    clock = settling.time.monotonic() + 1.0
    monkeypatch.setattr(settling, "time", SimpleNamespace(monotonic=lambda: clock + 1.0))
    here.resync.clean_up()
    assert not here.running() and not [*here.queries.ended_tokens()]


def test_NEW_9_a_start_that_ended_badly_here_is_taken_off(here: Here) -> None:
    start = here.start("m", pid=os.getpid())
    here.inflight.left_pool(start.token, ended_well=False)
    here.resync.disturbed()
    here.resync.recheck()
    here.resync.recheck()
    assert not here.running()


def test_NEW_9_a_start_that_had_ended_here_before_others_flagged_it_is_flagged_no_longer(here: Here) -> None:
    """Redis lost the note of its end, and this worker was cut off before it could tell it again."""
    start = here.start("m")
    here.deferred_cleanup.add(Acknowledged(0.0, "m", start.token, start.id, start.task))
    here.deferred_cleanup.connection_lost(600.0)
    here.ledger.messages.crash("m", start, cause=causes.WORKER_LOST, shared=True)
    assert here.queries.candidate_ids() == {start.id}
    here.resync.disturbed()
    here.resync.recheck()
    assert not here.queries.candidate_ids() and here.queries.lineage(start.id) is None


def test_NEW_9_without_a_disturbance_the_ledger_is_not_asked(here: Here) -> None:
    here.start("m", "C")
    for _ in range(3):
        here.resync.recheck()
    assert here.running() == {"m"}


def test_NEW_9_a_start_that_never_reached_the_ledger_is_a_disturbance(here: Here) -> None:
    here.start("m", "C")
    here.deferred_cleanup.missing += 1
    here.resync.recheck()
    here.resync.recheck()
    assert not here.running()


def test_NEW_9_a_reminder_that_comes_late_puts_nothing_back_on_record(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger was away when it was to be told; by now the start has been forgotten."""
    start = here.start("m")
    here.ended(start)
    here.deferred_cleanup.add(Acknowledged(0.0, "m", start.token, start.id, start.task))
    here.resync.connected(AmqpBroker(), again=True)
    clock = settling.time.monotonic() + 2 * settling.FOR_A_COPY
    monkeypatch.setattr(settling, "time", SimpleNamespace(monotonic=lambda: clock))
    here.resync.clean_up()
    assert not here.running()
    here.do_what_is_due()
    assert not here.running() and not [*here.queries.ended_tokens()]


def test_NEW_9_a_reminder_in_time_puts_back_what_redis_has_forgotten(here: Here) -> None:
    start = here.start("m")
    here.deferred_cleanup.add(Acknowledged(0.0, "m", start.token, start.id, start.task))
    here.ledger.client.delete(here.ledger.keys.running, here.ledger.keys.done)
    here.resync.connected(AmqpBroker(), again=True)
    here.do_what_is_due()
    assert here.running() == {"m"} and [*here.queries.ends([start.token])] == [Ended.DONE]


@pytest.mark.parametrize("why", ["the broker is away", "it owes an acknowledgement", "the loop hangs"])
def test_NEW_9_nothing_is_forgotten_before_the_broker_has_heard_of_its_acknowledgement(
    here: Here, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(settling, "DELAY", 0.0)
    start = here.start("m")
    here.ended(start)
    here.deferred_cleanup.add(Acknowledged(0.0, "m", start.token, start.id, start.task))
    here.resync.broker_is_away, here.books.owes_acknowledgements = (
        why == "the broker is away",
        why.startswith("it owes"),
    )
    here.loop_has_run_until = 0.0 if why == "the loop hangs" else math.inf
    here.resync.clean_up()
    assert here.running() == {"m"}
    here.resync.broker_is_away, here.books.owes_acknowledgements, here.loop_has_run_until = (
        False,
        False,
        math.inf,
    )
    here.resync.clean_up()
    assert not here.running()


def test_NEW_9_a_copy_that_was_parked_behind_a_dropped_claim_of_a_living_worker_runs_all_the_same(
    here: Here, new_redis_url: Callable[[], str]
) -> None:
    """It waited for as long as that worker lived: nobody else can know that nothing comes of the claim."""
    broker = Site(new_redis_url())
    try:
        here.ledger.fleet.beat(here.me.worker, {"node": "w1@h"}, first=True)
        here.start("m", "C", pid=os.getpid())
        (raw,) = (raw for _, _, raw in here.queries.running())
        copy = Start("C", "other.1", "w2@h/other", 7, 1, 2, 0, "id-m", "t", "a", 2, 5, 1, 1)
        headers = {"id": "id-m", "task": "t", "poison_mid": "m"}
        message: Any = SimpleNamespace(
            headers=headers,
            properties={},
            delivery_info={"routing_key": "a"},
            queue_name="a",
            content_type="application/json",
            content_encoding="utf-8",
            body=b"[]",
            received=b"[]",
        )
        parcel = pack(original(message))
        assert here.ledger.parking.park("m", raw, copy, number=0, parcel=parcel)
        broker.app.conf.task_create_missing_queues = True
        settings: Any = SimpleNamespace(activation_interval=3600.0, trial="cell", trial_queue="")
        parking = Parking(broker.app, here.ledger, settings)
        assert parking.round() == 0, "its claim stands in the way"
        here.resync.disturbed()
        here.resync.recheck()
        here.resync.recheck()
        assert parking.round() == 1
        assert [m["headers"]["poison_mid"] for m in broker.waiting()["a"]] == ["m"]
    finally:
        broker.close()
