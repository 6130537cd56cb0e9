"""What came by a lost connection is void from the moment of the loss: greenlets go on in between (NEW-9)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.model import Phase
from celery_poison.worker.admission import Admission
from celery_poison.worker.admit_marks import AdmitMarks
from celery_poison.worker.bootsteps import GuardStep
from celery_poison.worker.dispatcher import Dispatcher
from celery_poison.worker.receive import note_delivery
from celery_poison.worker.worker import Worker


class Stub(SimpleNamespace):
    """As much of a worker as a delivery meets."""

    def __init__(self, channel: object) -> None:
        super().__init__(policies={}, epoch=1, consumer=SimpleNamespace(task_consumer=None))
        self.consumer.task_consumer = SimpleNamespace(channel=channel)
        self.refused, self.dropped, self.noted = 0, [], []
        self._reconnect_cleanup = SimpleNamespace(refuse=self._refuse)
        self.outcomes = SimpleNamespace(
            never_started=lambda delivery, put_back: self.dropped.append((delivery, put_back))
        )
        self.inflight = SimpleNamespace(let_in=lambda token: None)
        self.admit_marks = SimpleNamespace(
            put=lambda mid, start: self.noted.append((mid, start.phase)), close=lambda delivery: None
        )
        self.checker = SimpleNamespace(must_ask=lambda *about: False)

    def _refuse(self) -> None:
        self.refused += 1

    def disconnected(self) -> None:
        Worker.disconnected(self)  # type: ignore[arg-type]


def _delivery(epoch: int) -> Any:
    message: Any = SimpleNamespace(
        headers={"id": "i", "task": "t", "poison_mid": "m"},
        delivery_info={"routing_key": "a", "redelivered": True},
        queue_name="a",
        body=b"[]",
    )
    policy: Any = SimpleNamespace(max_crashes=2, max_failures=5, max_payload_bytes=None)
    return note_delivery(message, policy, diverts=True, token="b.1", worker="w1@h/b", pid=1, epoch=epoch)


@pytest.mark.parametrize("lost", [False, True])
def test_NEW_9_a_delivery_that_was_judged_while_its_channel_closed_is_not_let_in(lost: bool) -> None:
    channel, other, handled = object(), object(), list[Any]()
    runtime: Any = Stub(channel)
    admission = Admission(runtime, handled.append)
    delivery = _delivery(runtime.epoch)
    Worker._channel_closes(runtime, channel if lost else other)
    admission._let_in(delivery)
    assert bool(handled) is not lost
    assert runtime.dropped == ([(delivery, True)] if lost else []), "its claim is taken back"
    assert runtime.refused == lost, "and what is in the pool and has not begun is refused"


def test_NEW_9_the_admit_mark_of_a_message_is_closed_before_it_goes_anywhere() -> None:
    seen: list[Any] = []
    writer: Any = SimpleNamespace(send=lambda command: seen.append("mark"))
    keys: Any = SimpleNamespace(running="running")
    delivery = _delivery(1)
    delivery.start = delivery.start.in_phase(Phase.ADMITTING)
    step: Any = SimpleNamespace(_runtime=SimpleNamespace(admit_marks=AdmitMarks(writer, keys)))
    cells: Any = SimpleNamespace(hold=lambda held: None)
    dispatcher = Dispatcher(
        lambda request: seen.append(request.poison.start.phase),
        lambda request: False,
        lambda: True,
        lambda seconds, call: None,
        lambda: None,
        cells,
        lambda request: GuardStep._received(step, request),
    )
    dispatcher(SimpleNamespace(poison=delivery))
    dispatcher(SimpleNamespace(poison=delivery))
    assert seen == ["mark", Phase.CLAIMED, Phase.CLAIMED], "it is written once, and first"
