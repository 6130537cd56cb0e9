"""Deliveries, deaths, cut connections and monitors in any order: the parked message runs once, never twice.

The ledger, the verdict and the monitor's round are real; the broker is a list, the workers are a few lines.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from celery import Celery
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from celery_poison.decide import Action, judge
from celery_poison.errors import StaleDelivery
from celery_poison.fleet import parking
from celery_poison.headers import MID, PARK, TRIAL
from celery_poison.keep.stored_message import pack
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Ended, Guilt, Parked, Start, StoredMessage
from celery_poison.policy import Policy
from celery_poison.worker.delivery import Delivery, facts_of, needs_care, note_delivery
from tests import sampled

M, TASK_ID = "m", "id"
HOME, COURT = "q", "court"
POLICY = Policy(max_crashes=10**6)


class Died(BaseException):
    """The monitor, between publishing and noting it; no refusal of the broker, which it would remember."""


class Copy:
    """One message in the broker."""

    def __init__(self, park: int = 0, queue: str = HOME, told: str = "") -> None:
        self.park, self.queue, self.told, self.redelivered = park, queue, told, False

    def __repr__(self) -> str:
        return f"<copy {self.park or ''}{' again' if self.redelivered else ''}>"


class Worker:
    """What one worker has in its hands."""

    def __init__(self, number: int) -> None:
        self.name = f"w{number}/boot{number}"
        self.unacked: list[Copy] = []
        self.running: tuple[Copy, Delivery] | None = None


class ParkingMachine(RuleBasedStateMachine):
    """One message, three places for workers, and a broker that may deliver anything again."""

    url: str
    trial = "cell"

    def __init__(self) -> None:
        super().__init__()
        client = open_redis(self.url)
        client.flushdb()
        self.ledger = Ledger(client, Keys("model"))
        self.queries = self.ledger.read
        self.broker: list[Copy] = [Copy()]
        self.numbers, self.tokens = itertools.count(), itertools.count()
        self.workers = [self._born() for _ in range(3)]
        self.to_recover: list[tuple[Worker, list[Copy]]] = []
        self.finished = 0
        self.read: list[tuple[str, Parked]] = []
        settings: Any = SimpleNamespace(activation_interval=3600, trial=self.trial, trial_queue=COURT)
        self.parking = parking.Parking(Celery("model", set_as_current=False), self.ledger, settings)
        self.dies_after_publishing = False
        machine = self

        class Publisher:
            def __init__(self, app: None) -> None: ...

            def __enter__(self) -> Publisher:
                return self

            def __exit__(self, *_: object) -> None: ...

            def publish(self, parcel: Any, queue: str, headers: dict[str, Any]) -> None:
                assert queue == (COURT if TRIAL in headers else HOME)
                machine.broker.append(Copy(headers[PARK], queue, headers.get(TRIAL, "")))
                if machine.dies_after_publishing:
                    raise Died

        self.publisher = Publisher
        parking.Publisher = Publisher  # type: ignore[assignment, misc]

    def teardown(self) -> None:
        try:
            self._let_everything_end()
        finally:
            self.ledger.client.close()

    def _born(self) -> Worker:
        worker = Worker(next(self.numbers))
        self.ledger.fleet.beat(worker.name, {"node": "n"}, first=True)
        return worker

    # --- what a worker does --------------------------------------------------------------------

    def _receive(self, worker: Worker, copy: Copy, *, dies: bool = False) -> None:
        worker.unacked.append(copy)
        headers = {"task": "t", "id": TASK_ID, MID: M} | ({PARK: copy.park} if copy.park else {})
        headers |= {TRIAL: copy.told} if copy.told else {}
        message: Any = SimpleNamespace(
            headers=headers,
            delivery_info={"routing_key": copy.queue, "redelivered": copy.redelivered},
            queue_name=copy.queue,
            content_type="application/json",
            body=b"x",
        )
        token = f"t{next(self.tokens)}"
        delivery = note_delivery(
            message, POLICY, diverts=True, token=token, worker=worker.name, pid=1, epoch=1
        )
        if not needs_care(message, POLICY):
            self._run(worker, copy, delivery)
        elif self._judge(worker, copy, delivery):
            if dies:
                self._die(worker)
            else:
                worker.unacked.remove(copy)

    def _judge(self, worker: Worker, copy: Copy, delivery: Delivery) -> bool:
        """Do what the door does; return whether the copy is to be acknowledged."""
        recorded = self.ledger.messages.look(M, TASK_ID, 3_600_000)
        foreign = recorded.is_in_the_way
        ended = recorded.ended if foreign else Ended.NOT
        match judge(facts_of(delivery, recorded, foreign, ended), delivery.limits()).action:
            case Action.DROP:
                self.ledger.messages.duplicate(M, delivery.start, reason="x")
                return True
            case Action.WAIT:
                return self._park(delivery, recorded.raw, delivery.start)
            case Action.RUN_ALONE if self.trial == "queue" and not delivery.is_from(COURT):
                assert not recorded.raw or self.ledger.messages.claim(M, recorded.raw, None)
                return self._park(delivery, b"", delivery.start._replace(alone=1))
            case Action.RUN | Action.RUN_ALONE:
                assert self.ledger.messages.claim(M, recorded.raw, delivery.start)
                self._run(worker, copy, delivery)
                return False
        raise AssertionError

    def _park(self, delivery: Delivery, seen: bytes, start: Start) -> bool:
        assert start.queue == HOME
        parcel = pack(
            StoredMessage(body=b"x", content_type="", content_encoding="", headers=delivery.message.headers)
        )
        return self.ledger.parking.park(M, seen, start, number=delivery.park, parcel=parcel)

    def _run(self, worker: Worker, copy: Copy, delivery: Delivery) -> None:
        others = [other.name for other in self.workers if other.running]
        assert not others, f"runs in {others} already"
        assert not self.finished, "it has finished before"
        worker.running = copy, delivery
        start = delivery.start._replace(phase="R")
        self.ledger.client.hset(self.ledger.keys.running, M, start.encode())

    def _finish(self, worker: Worker, *, settles: bool = True) -> None:
        assert worker.running is not None
        copy, delivery = worker.running
        worker.running = None
        self.finished += 1
        self.ledger.client.hset(self.ledger.keys.done, delivery.start.token, "D")
        if copy not in worker.unacked:
            return  # told on a connection that is gone
        worker.unacked.remove(copy)
        if not settles:
            return
        if delivery.look:
            self.ledger.messages.acquit(M, delivery.start, Guilt.CLEARED)
        else:
            self.ledger.messages.clean_up([(M, delivery.start.token)])

    def _die(self, worker: Worker) -> None:
        self.ledger.client.zrem(self.ledger.keys.leases, worker.name)
        self.ledger.client.hset(self.ledger.keys.open, worker.name, "i")
        self.to_recover.append((worker, worker.unacked))
        self.workers[self.workers.index(worker)] = self._born()

    # --- what may happen -----------------------------------------------------------------------

    places = st.integers(0, 2)

    @precondition(lambda self: self.broker)
    @rule(place=places, which=st.integers(0, 9), dies=st.booleans())
    def deliver(self, place: int, which: int, dies: bool) -> None:
        worker = self.workers[place]
        if worker.running is None:
            self._receive(worker, self.broker.pop(which % len(self.broker)), dies=dies)

    @rule(place=places)
    def finish(self, place: int) -> None:
        if self.workers[place].running:
            self._finish(self.workers[place])

    @rule(place=places)
    def finish_and_die_before_it_is_settled(self, place: int) -> None:
        worker = self.workers[place]
        if worker.running:
            self._finish(worker, settles=False)
            self._die(worker)

    @rule(place=places)
    def cut_connection(self, place: int) -> None:
        """The broker delivers again what it gave to this worker, whose task goes on."""
        worker = self.workers[place]
        self._give_back(worker.unacked)
        worker.unacked = []

    @rule(place=places, at_once=st.booleans())
    def die(self, place: int, at_once: bool) -> None:
        """RabbitMQ gives back at once, on Redis the monitor does."""
        worker = self.workers[place]
        self._die(worker)
        if at_once:
            self._give_back(worker.unacked)
            self.to_recover[-1] = (worker, [])

    def _give_back(self, copies: list[Copy]) -> None:
        for copy in copies:
            copy.redelivered = True
        self.broker.extend(copies)

    @precondition(lambda self: self.broker)
    @rule(which=st.integers(0, 9))
    def stray(self, which: int) -> None:
        """A copy from the trial queue comes back into the queue that its message was sent to."""
        self.broker[which % len(self.broker)].queue = HOME

    @rule()
    def recover(self) -> None:
        """Recover the messages of one dead worker, as ``fleet.recovery`` does."""
        if not self.to_recover:
            return
        worker, copies = self.to_recover.pop(0)
        for mid, start, _ in list(self.queries.running()):
            if start.worker == worker.name and next(self.queries.ends([start.token])) is not Ended.DONE:
                with suppress(StaleDelivery):
                    self.ledger.messages.crash(mid, start, cause="worker_lost", shared=True)
        self._give_back(copies)
        self.ledger.client.hdel(self.ledger.keys.open, worker.name)

    @rule(dies=st.booleans())
    def monitor(self, dies: bool) -> None:
        self.dies_after_publishing = dies
        with suppress(Died):
            self.parking.round()
        self.dies_after_publishing = False

    @rule()
    def another_monitor_reads(self) -> None:
        self.read = [
            (mid, parked)
            for mid, parked, _ in self.queries.parked()
            if parked.state == "waiting" and self.parking._is_due(mid, parked, {})
        ]

    @rule()
    def and_acts_later(self) -> None:
        self.parking._publish(self.read)

    # --- the end -------------------------------------------------------------------------------

    def _let_everything_end(self) -> None:
        for _ in range(50):
            while self.to_recover:
                self.recover()
            self.monitor(False)
            if self.broker:
                free = next((worker for worker in self.workers if worker.running is None), None)
                assert free, "one message runs in one worker"
                self._receive(free, self.broker.pop())
            else:
                for worker in self.workers:
                    if worker.running:
                        self._finish(worker)
        assert self.finished == 1, f"finished {self.finished} times"
        assert not self.broker and not any(worker.unacked for worker in self.workers)
        # What ended with a worker that nobody heard of again is forgotten by the monitor, after hours.
        self.ledger.messages.clean_up([(mid, start.token) for mid, start, _ in self.queries.running()])
        assert not [*self.queries.running()]
        left = [parked.state for _, parked, _ in self.queries.parked()]
        assert left in ([], ["finished"]), left
        assert not self.ledger.client.exists(self.ledger.keys.parcels)


class TrialMachine(ParkingMachine):
    """The same with a trial queue, and a message that is a suspect from the start."""

    trial = "queue"

    def __init__(self) -> None:
        super().__init__()
        start = Start("R", "t", "w/dead", 1, 1, 1, 0, TASK_ID, "t", HOME, POLICY.max_crashes, 5, 1, 1)
        self.ledger.messages.crash("earlier", start, cause="worker_lost", shared=True)
        self.broker[0].redelivered = True


@pytest.mark.parametrize("machine", sampled([ParkingMachine], [TrialMachine]), ids=["cell", "queue"])
def test_TP1_8_in_any_order_of_deaths_and_copies_a_message_runs_once_and_is_never_lost(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, machine: type[ParkingMachine]
) -> None:
    monkeypatch.setattr(parking, "COURTESY", -1.0)
    monkeypatch.setattr(parking, "Publisher", parking.Publisher)  # put back at the end
    machine.url = redis_url
    run_state_machine_as_test(
        machine,
        settings=hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None),
    )
