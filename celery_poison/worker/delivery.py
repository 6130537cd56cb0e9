"""What is noted about one delivery that needs care, and the admit mark under which it is opened.

Receiving can kill too: kombu unpacks, and Celery decodes, in the main process, before any start is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from celery_poison import causes
from celery_poison.basics.parts import Caught, Postponed
from celery_poison.decide import Facts
from celery_poison.headers import FAILURES, MARK, MID, OURS, PARK, RELEASE, TRIAL, identify, is_unique, mid_of
from celery_poison.ledger.messages import MessageState
from celery_poison.model import NO_HISTORY, Attempt, Ended, History, Limits, ParkingState, Phase, Start
from celery_poison.policy import Policy
from celery_poison.rules.failures import last_trouble
from celery_poison.worker.recorder import Recorder
from celery_poison.worker.threads import Retry

#: Seconds between two looks at an end.
PAUSE = 0.25


@dataclass(slots=True)
class Delivery:
    """One delivery on its way in.

    Attributes:
        look: it must be looked up in the ledger first (redelivered, released, marked or parked, or Redis may
            have forgotten that it was delivered before).
        is_known: something tells already that this is not its first delivery.
        park: number of the parking that published this copy; 0 for none.
        redelivered: it was delivered before, be it as this copy or as the one that was parked.
        is_unique: its mid belongs to this one publish; else nothing is held against it but its task id's
            history.
        waits_since: when it was first found to have to wait, by this process's clock.
        epoch: number of the broker connection it came by.
        start: its entry in the ledger; ``start.phase`` tells what it is doing, ``start.queue`` where it
            was sent.
        came_from: the queue that it was consumed from, which may be the trial queue.
        alone: it must run with nothing beside it.
        is_asked_about: nothing but a block list is against it, and only the user's function can tell.
        blocked: the rule on the block list that it falls under, as a sentence.
        caught: the hold that keeps it from beginning.
        paused: its task is paused: unless its history calls for something else, it is parked.
        overtaken: the entry of an earlier start that has not ended, and under which mid it stands, where
            no message is made to wait for it (``poison_observe_only``).
        released: a person released this task id, and no rule stands against it.
        has_run: a run of this very message has begun before, and was cut off.
        is_asked_twice: an end of it, or of its equal, was found, and is looked at again.
        postponed: its task is not known here: unless it has ended, it is parked for that pause.
    """

    message: Any
    mid: str
    policy: Policy
    start: Start
    came_from: str
    epoch: int
    look: bool
    is_known: bool
    release: int
    park: int
    redelivered: bool
    is_unique: bool
    history: History = NO_HISTORY
    alone: bool = False
    waits_since: float | None = None
    is_asked_about: bool = False
    blocked: str = ""
    caught: Caught | None = None
    paused: bool = False
    released: bool = False
    has_run: bool = False
    is_asked_twice: bool = False
    overtaken: tuple[str, bytes] | None = None
    postponed: Postponed | None = None

    def limits(self, *, trials: bool = True) -> Limits:
        policy = self.policy
        most = policy.max_crashes, policy.max_failures, policy.max_payload_bytes
        return Limits(*most, trials, policy.rerun)

    @property
    def is_acknowledged_late(self) -> bool:
        """Whether it is acknowledged late whatever its task says, so that its death loses nothing.

        What a person has released is on probation, and a suspect is on trial.
        """
        return self.alone or self.release > 0

    def is_from(self, trial_queue: str) -> bool:
        """Whether it was consumed from the trial queue."""
        return self.came_from == trial_queue

    def forget_trial_queue(self) -> None:
        """Let the message look as if it came from its own queue, where its retries belong."""
        info, home = self.message.delivery_info, self.start.queue
        # A Redis broker keeps the address of the original; RabbitMQ tells that of this copy.
        if home != self.came_from and info.get("routing_key") == self.came_from:
            info["routing_key"] = home

    def set_apart(self, recorded: MessageState) -> MessageState:
        """Make it a message of its own, and return what is on record of that: its task id's history."""
        self.mid = self.message.headers[MID] = f"{self.mid}:{self.start.token}"
        self.is_unique = True
        return replace(recorded, raw=b"", start=None, ended=Ended.NOT, kept=None, parked=None)

    def close_mark(self, recorder: Recorder) -> None:
        """Close its admit mark: it was received and decoded, and did no harm.

        Before it goes anywhere: where a pool of greenlets is full, that takes as long as a task does.
        """
        if self.start.phase == Phase.ADMITTING:
            self.start = self.start.in_phase(Phase.CLAIMED)
            recorder.mark(self.mid, self.start)

    @property
    def is_ordinary(self) -> bool:
        """Whether the look-up found what it finds of nearly every message: nothing."""
        return not self.is_known and self.history == NO_HISTORY


def attempt_of(delivery: Delivery) -> Attempt:
    """Return the attempt that ``self.request.poison`` shows for a delivery."""
    history = delivery.history
    cause, found = last_trouble(history, delivery.message.headers.get(FAILURES))
    return Attempt(
        deliveries=delivery.start.deliveries,
        crashes=history.crashes,
        failures=history.failures,
        redelivered=delivery.redelivered or delivery.release > 0,
        candidate=history.candidate,
        on_trial=delivery.alone,
        last_cause=cause,
        found=found,
    )


def facts_of(delivery: Delivery, recorded: MessageState, foreign_start: bool, ended: Ended) -> Facts:
    """Put together what the verdict is made on."""
    parked, caught = recorded.parked, delivery.caught
    is_kept = caught is not None and not caught.awaits and not delivery.blocked
    return Facts(
        history=recorded.history,
        foreign_start=foreign_start,
        ended=ended,
        kept=recorded.kept,
        release=delivery.release,
        last_release=recorded.release,
        park=delivery.park,
        last_park=parked.number if parked else 0,
        finished=parked is not None and parked.state is ParkingState.FINISHED,
        payload_bytes=delivery.start.payload_bytes,
        blocked=caught.reason if caught is not None and is_kept else delivery.blocked,
        blocked_for=caught.cause if caught is not None and is_kept else causes.BLOCKED,
        cut_off="" if foreign_start else _cut_off(delivery, recorded, ended),
        gate_closed=recorded.gate_closed,
    )


def _cut_off(delivery: Delivery, recorded: MessageState, ended: Ended) -> str:
    """Return the cause that has cut a run of this very message off; empty: none has.

    Its own worker may let a copy in before that is on record: then the start is there still.
    """
    history, start = recorded.history, recorded.start
    if history.cut_off == delivery.mid:
        return history.cut_off_by
    stands = start is not None and start.has_begun and start.token != delivery.start.token
    return causes.UNKNOWN if stands and ended is Ended.NOT else ""


def is_copy_of_ended(delivery: Delivery, recorded: MessageState) -> bool:
    """Whether a message that may be equal to the one that has ended is its copy: that one had gone back.

    Of two equal ones either will do.
    """
    start = recorded.start
    if not delivery.redelivered or start is None:
        return False
    if start.phase != Phase.WENT_BACK and not delivery.is_asked_twice:
        delivery.is_asked_twice = True  # its own process tells its end before its worker does
        raise Retry(PAUSE)
    return start.phase == Phase.WENT_BACK


def needs_care(message: Any, policy: Policy) -> bool:
    """Whether a message of a guarded task may not go straight to Celery's own handler."""
    headers = message.headers
    return bool(
        message.delivery_info.get("redelivered")
        or RELEASE in headers
        or MARK in headers
        or PARK in headers
        or getattr(message, "sealed", False)
        or message.content_type != "application/json"
        or (policy.max_payload_bytes is not None and size_of(message) > policy.max_payload_bytes)
    )


def size_of(message: Any) -> int:
    """Return the size of the body as received, in bytes."""
    received = getattr(message, "received", None)
    body = message.body if received is None else received
    return len(body) if isinstance(body, (bytes, str)) else 0


def _body_of(message: Any) -> Any:
    received = getattr(message, "received", None)
    return message.body if received is None else received


def settle_identity(message: Any, trial_queue: str) -> None:
    """Let the headers of a task's message say which message it is: from here on they are believed.

    A publisher may write ours: "sent elsewhere" is believed of what comes from the trial queue alone.
    """
    if TRIAL in message.headers and _came_from(message) != trial_queue:
        del message.headers[TRIAL]
    message.headers[MID] = identify(names_of(message), getattr(message, "origin", ""), _body_of(message))


def note_delivery(
    message: Any,
    policy: Policy,
    *,
    diverts: bool,
    token: str,
    worker: str,
    pid: int,
    epoch: int,
    suspected: bool = False,
) -> Delivery:
    """Note what needs care; ``suspected``: even a first delivery may be a copy (:mod:`.resync`)."""
    headers, mid = message.headers, mid_of(names_of(message))
    release, park = headers.get(RELEASE), headers.get(PARK)
    redelivered = bool(message.delivery_info.get("redelivered")) or park is not None
    is_known = redelivered or release is not None or MARK in headers
    return Delivery(
        message=message,
        mid=mid,
        policy=policy,
        start=_claimed(message, policy, token, worker)._replace(pid=pid, diverts=int(diverts)),
        came_from=_came_from(message),
        epoch=epoch,
        look=is_known or suspected,
        is_known=is_known,
        release=release if type(release) is int else 0,  # true is none
        park=park if type(park) is int else 0,
        redelivered=redelivered,
        # A copy that was made from the ledger is the one that it says.
        is_unique=is_unique(mid) or release is not None or park is not None,
    )


def _claimed(message: Any, policy: Policy, token: str, worker: str) -> Start:
    """Return the start that is on record until it runs."""
    names = names_of(message)
    return Start.of(
        *(token, worker, names["id"], names["task"]),
        queue=home_of(message),
        phase=Phase.CLAIMED,
        max_crashes=policy.max_crashes,
        max_failures=policy.max_failures,
        payload_bytes=size_of(message),
    )


def _came_from(message: Any) -> str:
    return getattr(message, "queue_name", None) or str(message.delivery_info.get("routing_key") or "")


def home_of(message: Any) -> str:
    """Return the queue that a message was sent to, which is not the trial queue."""
    home = message.headers.get(TRIAL)
    return home if home and isinstance(home, str) else _came_from(message)


# --- Celery's task protocol 1: task, id and retries stand in the body ------------------------------------

#: What is looked for in the body.
_NAMES = ("task", "id", "retries")


def names_of(message: Any) -> Mapping[str, Any]:
    """Return the headers of a message, with what its body has in their place.

    The body of such a message is decoded for that, as Celery does next.
    """
    headers: Mapping[str, Any] = message.headers
    if "task" in headers and "id" in headers:
        return headers
    try:
        body = message.decode()
    except Exception:
        return headers  # Celery finds that, and has its own ways with it
    if not (isinstance(body, dict) and isinstance(body.get("id"), str) and isinstance(body.get("task"), str)):
        return headers
    return {**{name: body[name] for name in _NAMES if name in body}, **headers}


def take_our_headers(request: dict[str, Any], headers: Mapping[str, Any]) -> None:
    """Add our headers to Celery's request of a message of protocol 1, which is made of the body alone."""
    for name in OURS:
        request.pop(name, None)  # the body's own
        if name in headers:
            request[name] = headers[name]
