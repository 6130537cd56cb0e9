"""A healthy message is let in at sight; what differs is looked at closely, and so is all after a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.basics.parts import Hold
from celery_poison.headers import MARK, MID, PARK, RELEASE, TRIAL, new_mid
from celery_poison.policy import Policy
from celery_poison.settings import Settings
from celery_poison.worker.admission import Admission
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.plans import Plans
from celery_poison.worker.road import Road
from tests.sites import on_site

HEADERS = {
    "id": "i",
    "task": "t",
    "retries": 0,
    "replaced_task_nesting": 0,
    "eta": None,
    "shadow": None,
    "timelimit": [None, None],
}


class Message(SimpleNamespace):
    """A first delivery from a queue, as kombu hands it over."""

    content_type = "application/json"
    queue_name = "q"
    body = b"[[], {}, {}]"

    def __init__(self, **headers: Any) -> None:
        headers = {**HEADERS, **headers}
        stamp = headers.pop(MID, new_mid(headers))
        payload = [[1], {}, {"chain": None}]
        info = {"redelivered": False, "routing_key": "q"}
        super().__init__(headers={MID: stamp, **headers}, payload=payload, delivery_info=info)


class Way:
    """As much of a worker as a message meets from its queue to Celery's handler."""

    def __init__(self) -> None:
        self.at_once, self.closely = list[Any](), list[Any]()
        self.policies, self.plans = {"t": (Policy(), True)}, Plans()
        self.hold, self.rules, self.inflight = SimpleHold(), set[str](), InFlight()
        self.window = SimpleNamespace(is_suspected=False)
        broadcasts: Any = SimpleNamespace(ordinary={"q"})
        unprocessable: Any = SimpleNamespace(handler=self.at_once.append, take=self.closely.append)
        parts: dict[str, Any] = {
            "settings": Settings(),
            "policies": self.policies,
            "plans": self.plans,
            "inflight": self.inflight,
            "me": SimpleNamespace(next_token=lambda: "b.1", pid=1, worker="w1@h/b"),
            "loop": SimpleNamespace(epoch=1),
        }
        self.admission = on_site(
            Admission,
            **parts,
            holds=[self.hold],
            checker=SimpleNamespace(
                concerns=self.rules.__contains__,
                must_ask=lambda *about: False,
                reason=lambda *about, ask: "",
                catch=lambda message, task: None,
            ),
            resync=SimpleNamespace(window=self.window),
            broadcasts=lambda message: False,
        )
        self.road = on_site(
            Road, **parts, opening=self.look_closer, unprocessable=unprocessable, broadcasts=broadcasts
        )

    def look_closer(self, message: Any) -> None:
        self.closely.append(message)
        with suppress(TypeError, AttributeError):  # garbage: the real one keeps it
            message.notes = self.admission.notes(message)

    def receive(self, message: Message) -> Any:
        """Return the message if it was looked at closely; None: it was let in at sight."""
        self.at_once.clear()
        self.closely.clear()
        self.road.receive(message)
        assert len(self.at_once) + len(self.closely) == 1
        return self.closely[0] if self.closely else None


class SimpleHold(Hold):
    """A hold that keeps what it is told to."""

    paused = asked = looked = False

    def looks_into(self, task: str) -> bool:
        return self.looked

    def parks(self, task: str, *, as_of_now: bool = False) -> bool:
        return self.paused

    def asks(self, task: str) -> bool:
        return self.asked


@pytest.fixture
def way() -> Iterator[Way]:
    way = Way()
    assert way.receive(Message()) is not None, "the first message of a task has its plan made"
    assert way.receive(Message()) is None
    yield way


def _redelivered(message: Message) -> None:
    message.delivery_info["redelivered"] = True


def _with(**parts: Any) -> Callable[[Message], None]:
    return lambda message: vars(message).update(parts)


#: What differs -> the headers of such a message, or what becomes of it.
DIFFERENT: dict[str, dict[str, Any] | Callable[[Message], None]] = {
    "it was delivered before": _redelivered,
    "nothing is known of its delivery": _with(delivery_info=None),
    "it was released": {RELEASE: 1},
    "it is marked": {MARK: 1},
    "it was parked": {PARK: 1},
    "it comes from the trial queue": {TRIAL: "q"},
    "it is packed": {"compression": "gzip"},
    "it is no JSON": _with(content_type="application/x-yaml"),
    "its queue is not known yet": _with(queue_name="other"),
    "it has no stamp": {MID: ""},
    "its stamp is another's": {MID: new_mid({**HEADERS, "id": "j"})},
    "its stamp is no text": {MID: 7},
    "it was rejected before": {"x-death": [{"count": 1}]},
    "no task is known by its name": {"task": "u"},
    "its task is no name": {"task": ["t"]},
    "it has a time": {"eta": "2030-01-01"},
    "it has limits": {"timelimit": [1e12, None]},
    "it has another name": {"shadow": []},
    "its arguments are none": _with(payload=["a", {}, {}]),
    "its options are none": _with(payload=[[], {}, [1]]),
    "its body holds too little": _with(payload=[[], {}]),
    "its body is of protocol 1": _with(payload={"args": [], "id": "i", "task": "t"}),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_only_a_message_that_differs_in_nothing_is_let_in_at_sight(way: Way, what: str) -> None:
    different = DIFFERENT[what]
    message = Message(**different) if isinstance(different, dict) else Message()
    if not isinstance(different, dict):
        different(message)
    assert way.receive(message) is message
    assert way.receive(Message()) is None


def test_TP1_8_a_message_that_was_here_already_is_looked_up_whichever_way_it_takes(way: Way) -> None:
    message = Message()
    assert way.receive(message) is None
    assert way.receive(message).notes.look
    way.plans.renew()
    message = Message()
    assert way.receive(message) is message and message.notes is None
    assert way.receive(message).notes.look


def test_whatever_is_let_in_at_sight_would_have_been_let_in_by_who_looks_closer(way: Way) -> None:
    for retries in range(3):
        message = Message(retries=retries)
        copy = Message(**message.headers)
        assert way.receive(message) is None
        way.admission.inflight = InFlight()  # else it was here already
        assert way.admission.notes(copy) is None and copy.headers == message.headers


CHANGES: dict[str, Callable[[Way], object]] = {
    "a rule blocks the task": lambda way: way.rules.add("t"),
    "a person pauses the task": lambda way: setattr(way.hold, "paused", True),
    "a deploy is guarded": lambda way: setattr(way.hold, "asked", True),
    "a hold looks into messages": lambda way: setattr(way.hold, "looked", True),
    "a limit of size is set": lambda way: way.policies.update(t=(Policy(max_payload_bytes=1), True)),
    "a limit is set for a queue": lambda way: way.policies.update(
        t=(Policy(by_queue={"q": Policy(max_payload_bytes=1)}), True)
    ),
    "Redis may have forgotten something": lambda way: setattr(way.window, "is_suspected", True),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_holds_for_the_very_next_message(way: Way, what: str) -> None:
    CHANGES[what](way)
    way.plans.renew()
    for _ in range(2):
        message = Message()
        assert way.receive(message) is message, "as long as it holds"


def test_a_moment_of_doubt_ends_by_itself(way: Way) -> None:
    way.window.is_suspected = True
    way.plans.renew()
    assert way.receive(Message()).notes.look
    way.window.is_suspected = False
    assert way.receive(Message()).notes is None
    assert way.receive(Message()) is None


def test_a_plan_that_is_made_while_something_changes_holds_for_one_message(way: Way) -> None:
    way.plans.renew()
    concerns = way.admission.checker.concerns

    def changes_meanwhile(task: str) -> bool:
        before = concerns(task)
        way.rules.add(task)  # a thread beside it
        way.plans.renew()
        return before

    way.admission.checker.concerns = changes_meanwhile  # type: ignore[method-assign]
    assert way.receive(Message()).notes is None, "it came before the rule"
    way.admission.checker.concerns = concerns  # type: ignore[method-assign]
    message = Message()
    assert way.receive(message) is message and way.receive(Message()) is not None


def test_a_hold_at_rest_is_not_told_of_runs_until_it_awakes(way: Way) -> None:
    way.hold.is_at_rest = True
    for is_awake in (False, True):
        way.plans.renew()
        assert way.receive(Message()) is not None and way.receive(Message()) is None
        assert way.plans.known["t"].holds == ((way.hold,) if is_awake else ())
        way.hold.is_at_rest = False


def test_NEW_9_a_window_of_suspicion_that_opens_as_a_plan_is_made_is_not_missed_by_it(way: Way) -> None:
    class Opens:
        is_open = False

        @property
        def is_suspected(self) -> bool:
            before, self.is_open = self.is_open, True
            if not before:
                way.plans.renew()  # as the thread does that has just opened it
            return before

    way.plans.renew()
    way.admission.resync.window = Opens()
    for _ in range(3):
        assert way.receive(Message()) is not None, "no message is let in at sight while it is open"
