"""What is held back: shown above the messages, and let go by a button (WAS-6, WAS-7, TP1-4).

A person paused it, a worker suspended itself, or the outbox cannot send.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from celery import Celery

from celery_poison.ledger.outbox import LaneRecord
from celery_poison.ledger.pauses import Pause, Scope
from celery_poison.plugin import plugin_of
from celery_poison.producer.causes import Cause
from celery_poison.producer.outbox import OutboxDesk
from celery_poison.quarantine import Quarantine
from celery_poison.quarantine.overview import Overview

#: Sending to a queue, beside the scopes of a pause.
SENDING = "sending"
KINDS = (*Scope, SENDING)
#: Seconds after which rows of the user's database should have been moved, even if a relay died.
OVERDUE = 30.0


class Held(NamedTuple):
    """One line.

    Attributes:
        kind: one of :data:`KINDS`.
        name: of the queue, or of the task.
        of: the worker that suspended itself, or the only task that is not sent; else empty.
        since: seconds since 1970, or None if it is not known.
        waiting: messages in the outbox; None: nobody counts.
        can_go: whether there is anything to let go: what merely fails is tried again by itself.
    """

    kind: str
    name: str
    of: str
    story: str
    by: str = ""
    note: str = ""
    since: float | None = None
    waiting: int | None = None
    can_go: bool = True

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()


def held(seen: Overview) -> list[Held]:
    """Return everything that is held back, the pauses first."""
    return [*map(_paused, seen.paused), *_unsent(seen.outbox), *_unmoved(seen)]


def _paused(pause: Pause) -> Held:
    story = {
        Scope.QUEUE: f"No worker consumes queue {pause.name}",
        Scope.TASK: f"Messages of task {pause.name} do not begin",
        Scope.ENDPOINT: f"{pause.worker} does not consume queue {pause.name}",
    }[pause.scope]
    by = pause.actor or "itself"
    return Held(pause.scope, pause.name, pause.worker, story, by, pause.note, pause.since)


def _unsent(lanes: list[LaneRecord]) -> Iterator[Held]:
    for lane in lanes:
        of = f" of task {lane.task}" if lane.task else ""
        if lane.blocked:
            by = str(lane.blocked.get("actor") or "itself")
            note = str(lane.blocked.get("note") or _why(str(lane.blocked.get("cause") or "")))
            since = lane.blocked.get("at_ms", 0) / 1000 or None
            story = f"Nothing{of} is sent to queue {lane.queue}"
            yield Held(SENDING, lane.queue, lane.task, story, by, note, since, lane.waiting)
        elif lane.cause:
            story, note = f"Sending{of} to queue {lane.queue} fails, and is tried again", _why(lane.cause)
            yield Held(SENDING, lane.queue, lane.task, story, note=note, waiting=lane.waiting, can_go=False)


def _unmoved(seen: Overview) -> Iterator[Held]:
    rows = seen.outbox_database
    if rows and rows.oldest and seen.at - rows.oldest > OVERDUE:
        story = "Messages in your own database are not moved into the outbox"
        yield Held(SENDING, "", "", story, since=rows.oldest, waiting=rows.rows, can_go=False)


def _why(cause: str) -> str:
    return Cause(cause).row.sentence if cause in {*Cause} else cause


def let_go(
    app: Celery, quarantine: Quarantine, kind: str, name: str, of: str, *, actor: str, note: str
) -> None:
    """End one of them.

    Raises:
        MessageNotFound: it is over, or never was.
        LedgerUnavailable: Redis is away.
    """
    if kind == SENDING:
        OutboxDesk(plugin_of(app)).unblock(name, of, actor=actor, note=note)
    elif kind == Scope.TASK:
        quarantine.resume_task(name, actor=actor, note=note)
    else:
        quarantine.resume_queue(name, worker=of, actor=actor, note=note)
