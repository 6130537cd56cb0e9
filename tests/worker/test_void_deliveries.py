"""What came by a lost connection is void from the moment of the loss; what had begun is not (NEW-9)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from kombu.asynchronous import Hub

from celery_poison.model import Phase
from celery_poison.policy import Policy
from celery_poison.settings import Settings
from celery_poison.worker import lease as lease_module
from celery_poison.worker.admission import Admission
from celery_poison.worker.delivery import note_delivery
from celery_poison.worker.dispatcher import Dispatcher
from celery_poison.worker.lease import Lease, clock
from celery_poison.worker.outcome import Outcomes
from celery_poison.worker.pool_processes import hear_of_begun
from celery_poison.worker.rejoin import Rejoin
from celery_poison.worker.threads import EventLoop
from tests.sites import on_site


class Stub:
    """As much of a worker as a delivery meets."""

    def __init__(self, channel: object) -> None:
        self.loop = EventLoop()
        self.loop.consumer = SimpleNamespace(
            task_consumer=SimpleNamespace(channel=channel), hub=None, pool=None
        )
        self.lease, self.dropped, self.handled = Lease(10.0), list[Any](), list[Any]()
        self.judged, self.marked = list[Any](), list[str]()
        me = SimpleNamespace(issued=1)
        self.cleanup = on_site(Rejoin, loop=self.loop, lease=self.lease, me=me)
        parts: dict[str, Any] = {
            "handler": self.handled.append,
            "loop": self.loop,
            "outcomes": SimpleNamespace(
                never_started=lambda delivery, put_back: self.dropped.append((delivery, put_back))
            ),
            "inflight": SimpleNamespace(
                let_in=lambda token: None, hand_over=lambda let_in, delivery: let_in(delivery)
            ),
            "recorder": SimpleNamespace(mark=lambda mid, start: self.marked.append(mid)),
            "checker": SimpleNamespace(must_ask=lambda *about: False),
            "settings": Settings(),
            "lease": self.lease,
            "background": SimpleNamespace(do_together=lambda job, item, away: self.judged.append(item)),
        }
        self.admission = on_site(Admission, **parts)


def _delivery(epoch: int) -> Any:
    message: Any = SimpleNamespace(
        headers={"id": "i", "task": "t", "poison_mid": "m"},
        delivery_info={"routing_key": "a", "redelivered": True},
        queue_name="a",
        body=b"[]",
    )
    policy = Policy()
    return note_delivery(message, policy, diverts=True, token="b.1", worker="w1@h/b", pid=1, epoch=epoch)


@pytest.mark.parametrize("lost", [False, True])
def test_NEW_9_a_delivery_that_was_judged_while_its_channel_closed_is_not_let_in(lost: bool) -> None:
    channel, other = object(), object()
    worker = Stub(channel)
    delivery = _delivery(worker.loop.epoch)
    worker.cleanup.channel_closes(channel if lost else other)
    worker.admission.let_in(delivery)
    assert bool(worker.handled) is not lost
    assert worker.dropped == ([(delivery, True)] if lost else []), "its claim is taken back"
    assert worker.lease.is_void("b.1") == lost, "and what is in the pool and has not begun is refused"


def test_EMS_8_a_worker_that_stood_still_since_its_claim_writes_no_mark_over_anothers_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, now = Stub(object()), clock()
    delivery = _delivery(worker.loop.epoch)
    monkeypatch.setattr(lease_module, "clock", lambda: now + 11.0)
    worker.admission.let_in(delivery)
    assert worker.judged == [delivery] and not worker.marked and not worker.handled
    worker.lease.confirmed(now + 11.0)
    worker.admission.let_in(delivery)
    assert worker.handled and worker.marked


def test_NEW_9_the_admit_mark_of_a_message_is_closed_before_it_goes_anywhere() -> None:
    seen: list[Any] = []
    recorder: Any = SimpleNamespace(mark=lambda mid, start: seen.append("mark"))
    delivery = _delivery(1)
    delivery.start = delivery.start.in_phase(Phase.ADMITTING)
    cells: Any = SimpleNamespace(make_wait=lambda must_wait: None)
    consumer = SimpleNamespace(on_task_request=lambda request: seen.append(request.poison.start.phase))
    dispatcher = Dispatcher(consumer, Settings(observe_only=True), cells, cells, cells, cells, recorder)
    dispatcher(SimpleNamespace(poison=delivery))
    dispatcher(SimpleNamespace(poison=delivery))
    assert seen == ["mark", Phase.CLAIMED, Phase.CLAIMED], "it is written once, and first"


@pytest.mark.parametrize("put_back", [False, True])
def test_NEW_9_the_mark_of_a_revoked_message_is_closed_before_its_entry_goes(put_back: bool) -> None:
    worker, seen = Stub(object()), list[Any]()
    recorder = SimpleNamespace(mark=lambda mid, start: seen.append(start.phase))
    worker.admission.recorder = recorder
    background = SimpleNamespace(do=lambda job: seen.append("forgotten"))
    ledger, inflight = SimpleNamespace(messages=Mock()), SimpleNamespace(forget_admitted=lambda token: None)
    parts = {"ledger": ledger, "inflight": inflight, "background": background, "recorder": recorder}
    outcomes = on_site(Outcomes, **parts)
    delivery = _delivery(worker.loop.epoch)
    # Celery reads it, finds it revoked, and settles it.
    worker.admission.handler = lambda message: outcomes.never_started(message.poison, put_back=put_back)
    worker.admission.let_in(delivery)
    assert seen == [Phase.ADMITTING, Phase.CLAIMED, "forgotten"], "and nothing is written after that"


def test_NEW_9_a_void_start_is_refused_in_every_process_that_shares_the_lease() -> None:
    lease = Lease(10.0)
    in_a_pool_process = Lease(10.0, lease.fd)
    assert not in_a_pool_process.is_void("b.1")
    lease.void(7)
    lease.rejoined()
    assert in_a_pool_process.is_void("b.7")
    assert in_a_pool_process.is_void("br1.6")
    assert not in_a_pool_process.is_void("br1.8")


class Pool:
    """As much of a prefork pool as says what its processes say: messages of four bytes, in two parts."""

    def __init__(self, hub: Any, *fds: int) -> None:
        self._pool, self._fileno_to_outq = self, dict.fromkeys(fds)
        self.hub, self.heard = hub, list[bytes]()

    def handle_result_event(self, fd: int) -> None:
        reading = self._read(fd)
        if next(reading, None) is not None:
            self.hub.add_reader(fd, reading)

    def _read(self, fd: int) -> Iterator[bool]:
        said = os.read(fd, 4)
        if not said:
            self.hub.remove_reader(fd)
            return
        while len(said) < 4:
            yield True
            said += os.read(fd, 4 - len(said))
        self.heard.append(said)
        self.hub.add_reader(fd, self.handle_result_event, fd)


def test_NEW_9_what_a_process_has_begun_is_heard_of_before_anything_goes_back() -> None:
    hub, (out, into), (empty, gone) = Hub(), os.pipe(), os.pipe()
    os.close(gone)
    pool = Pool(hub, out, empty)
    os.write(into, b"ack1ack2")
    hear_of_begun(SimpleNamespace(hub=hub, pool=pool))
    assert pool.heard == [b"ack1", b"ack2"]
    os.write(into, b"ac")
    pool.handle_result_event(out)
    os.write(into, b"k3")
    hear_of_begun(SimpleNamespace(hub=hub, pool=pool))
    assert pool.heard[2:] == [b"ack3"]
    for fd in (out, into, empty):
        os.close(fd)


def test_NEW_9_a_pool_without_processes_has_nothing_to_say() -> None:
    for pool in (SimpleNamespace(_pool=None), SimpleNamespace(), None):
        hear_of_begun(SimpleNamespace(hub=None, pool=pool))
        hear_of_begun(SimpleNamespace(hub=Hub(), pool=pool))


@pytest.mark.parametrize("paused", [False, True])
def test_NEW_9_while_the_ledger_is_away_only_a_message_of_a_paused_task_waits_for_it(paused: bool) -> None:
    worker = Stub(object())
    worker.loop.consumer.hub = object()
    worker.admission.settings = Settings()
    delivery = _delivery(worker.loop.epoch)
    delivery.paused = paused
    assert worker.admission._ledger_away(delivery) is paused
    worker.loop.drain()
    assert bool(worker.handled) is not paused
