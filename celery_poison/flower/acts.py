"""What people and programs do here, each act once for both; and what is held back until one lets it go.

An act takes the request that asks for it, and says in JSON what was done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from tornado.web import HTTPError

from celery_poison.errors import MessageNotFound
from celery_poison.extensions.holds.desk import HoldDesk
from celery_poison.extensions.outbox.desk import OutboxDesk
from celery_poison.extensions.outbox.lanes import LaneRecord
from celery_poison.extensions.outbox.send_failures import Cause
from celery_poison.extensions.proposals.desk import ProposalDesk
from celery_poison.flower.access import Guarded
from celery_poison.flower.async_ledger import ActJob
from celery_poison.flower.choosing import ACTIONS, Choice, MessageAct, NothingChosen, scheduled
from celery_poison.flower.parts import is_here
from celery_poison.plugin import plugin_of
from celery_poison.quarantine.overview import Overview
from celery_poison.quarantine.store import Store
from celery_poison.rules.pauses import Pause, Scope

#: Sending to a queue, beside the scopes of a pause.
SENDING = "sending"
KINDS = (*Scope, SENDING)
#: Those that a person begins, with their extension: a worker suspends itself.
HOLDS = {str(Scope.QUEUE): "holds", str(Scope.TASK): "holds", SENDING: "outbox"}
#: Seconds after which rows of the user's database should have been moved, even if a relay died.
OVERDUE = 30.0


def action(verb: str) -> MessageAct:
    """Return the act on messages of that name; HTTPError 404: there is none."""
    if verb not in ACTIONS:
        raise HTTPError(404, f"There is no act {verb}")
    return ACTIONS[verb]


async def begin(of: Guarded, verb: str, choice: Choice, patience: float) -> ActJob:
    """Begin an act on messages, and wait at most ``patience`` seconds for its end.

    Raises:
        NothingChosen, BadFilter: it names no message.
        BadCare: what was typed makes no sense.
        HTTPError: 404: there is no such act.
    """
    asked = action(verb)
    choice.check()
    how: dict[str, Any] = {name: True for name in asked.choices if of.said(name) == "1"}
    if asked.asks:
        how |= scheduled({name: of.said(name).strip() for name in asked.asks})
    job = ActJob(verb, choice.mids, actor=of.actor, note=of.said("note"), **how)
    return await of.ledger.start(job, patience)


def job(of: Guarded, id: str) -> ActJob:
    """Return an act that is, or was, under way; HTTPError 404: it is not remembered."""
    if id not in of.ledger.jobs:
        raise HTTPError(404, "This act is not remembered: Flower was started again since. See the journal")
    return of.ledger.jobs[id]


async def lift_gate(of: Guarded) -> Any:
    """Lift the fleet gate; MessageNotFound: it is not closed."""
    lift = partial(of.ledger.quarantine.lift_gate, actor=of.actor, note=of.said("note"))
    return (await of.ledger.change(lift)).as_dict()


async def decide(of: Guarded, verb: str) -> Any:
    """Apply or dismiss the pipeline's proposal of the version that was read.

    Raises:
        ProposalRefused: that one does not wait any more.
        HTTPError: 400: the version is no number.
    """
    typed = of.said("version")
    if not (typed.isascii() and typed.isdecimal() and len(typed) < 16):
        raise HTTPError(400, "version must be the number of a proposal")
    desk, number = ProposalDesk(of.application.capp), int(typed)
    how = {"actor": of.actor, "note": of.said("note")}
    if verb == "apply":
        apply = partial(desk.apply, number, rules_only=of.said("rules_only") == "1", **how)
        return (await of.ledger.change(apply))._asdict()
    await of.ledger.change(partial(desk.dismiss, number, **how))
    return {"version": number}


async def let_go(of: Guarded) -> Any:
    """End a pause, a suspension or a blockade.

    Raises:
        MessageNotFound: it is over, or never was.
        HTTPError: 400: there is no such kind.
    """
    kind, name, whose = map(of.said, ("kind", "name", "of"))
    if kind not in KINDS or not name:
        raise HTTPError(400, f"kind must be one of {', '.join(KINDS)}, and name must be given")
    desk, how = HoldDesk(Store(of.application.capp)), {"actor": of.actor, "note": of.said("note")}
    if kind == SENDING:
        end: Callable[[], object] = partial(
            OutboxDesk(plugin_of(of.application.capp)).unblock, name, whose, **how
        )
    elif kind in (Scope.TASK, Scope.VERSION):
        end = partial(desk.resume_task, name, **how)
    else:
        end = partial(desk.resume_queue, name, worker=whose, **how)
    await of.ledger.change(end)
    return {"kind": kind, "name": name, "of": whose, "note": how["note"]}


async def hold_back(of: Guarded) -> Any:
    """Pause a queue or a task, or send nothing more to a queue.

    Raises:
        NothingChosen: no such queue, or no such task, is known.
        HTTPError: 400: it is none of these.
    """
    kind, name, whose = map(of.said, ("kind", "name", "of"))
    kinds = [each for each, room in HOLDS.items() if is_here(room)]
    if not kinds:
        raise HTTPError(400, "nothing can be held back here: its extensions are left out")
    if kind not in kinds or not name:
        raise HTTPError(400, f"kind must be one of {', '.join(kinds)}, and name must be given")
    desk, note = HoldDesk(Store(of.application.capp)), of.said("note")
    how: dict[str, Any] = {"actor": of.actor, "note": note}
    begins: dict[str, Callable[[], object]] = {
        SENDING: partial(OutboxDesk(plugin_of(of.application.capp)).block, name, whose, **how),
        str(Scope.QUEUE): partial(desk.pause_queue, name, **how),
        str(Scope.TASK): partial(desk.pause_task, name, **how),
    }
    try:
        await of.ledger.change(begins[kind])
    except MessageNotFound as unknown:  # a person must hear of it
        raise NothingChosen(str(unknown)) from None
    return {"kind": kind, "name": name, "of": whose if kind == SENDING else "", "note": note}


# --- what is held back (WAS-6, WAS-7, TP1-4) ----------------------------------------------------------


class HeldBack(NamedTuple):
    """One line.

    Attributes:
        kind: one of :data:`KINDS`.
        name: of the queue, or of the task.
        of: the worker that suspended itself, or the only task that is not sent; else empty.
        since: seconds since 1970, or None if it is not known.
        waiting: messages in the outbox; None: not counted.
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


def held_back(seen: Overview) -> list[HeldBack]:
    """Return everything that is held back, the pauses first."""
    return [*map(_paused, seen.panel("paused") or ()), *_unsent(seen.panel("outbox") or ()), *_unmoved(seen)]


def _paused(pause: Pause) -> HeldBack:
    story = {
        Scope.QUEUE: f"No worker consumes queue {pause.name}",
        Scope.TASK: f"Messages of task {pause.name} do not begin",
        Scope.ENDPOINT: f"{pause.worker} does not consume queue {pause.name}",
        Scope.VERSION: f"Workers of {pause.version} do not begin task {pause.name}: it kills them",
    }[pause.scope]
    by = pause.actor or ("the deploy guard" if pause.scope is Scope.VERSION else "itself")
    return HeldBack(pause.scope, pause.name, pause.worker, story, by, pause.note, pause.since)


def _unsent(lanes: Iterable[LaneRecord]) -> Iterator[HeldBack]:
    for lane in lanes:
        of = f" of task {lane.task}" if lane.task else ""
        if lane.blocked:
            by = str(lane.blocked.get("actor") or "itself")
            note = str(lane.blocked.get("note") or _why(str(lane.blocked.get("cause") or "")))
            since = lane.blocked.get("at_ms", 0) / 1000 or None
            story = f"Nothing{of} is sent to queue {lane.queue}"
            yield HeldBack(SENDING, lane.queue, lane.task, story, by, note, since, lane.waiting)
        elif lane.cause:
            story, note = f"Sending{of} to queue {lane.queue} fails, and is tried again", _why(lane.cause)
            yield HeldBack(
                SENDING, lane.queue, lane.task, story, note=note, waiting=lane.waiting, can_go=False
            )


def _unmoved(seen: Overview) -> Iterator[HeldBack]:
    rows = seen.panel("outbox_database")
    if rows and rows.oldest and seen.at - rows.oldest > OVERDUE:
        story = "Messages in your own database are not moved into the outbox"
        yield HeldBack(SENDING, "", "", story, since=rows.oldest, waiting=rows.rows, can_go=False)


def _why(cause: str) -> str:
    return Cause(cause).row.sentence if cause in {*Cause} else cause
