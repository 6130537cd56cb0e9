"""What people and programs do here, each act once for both; and what is held back until one lets it go.

An act takes the request that asks for it, and says in JSON what was done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from tornado.web import HTTPError

from celery_poison.desk.overview import Overview
from celery_poison.errors import MessageNotFound
from celery_poison.flower.access import Guarded
from celery_poison.flower.async_ledger import ActJob
from celery_poison.flower.choosing import ACTIONS, Choice, MessageAct, NothingChosen, scheduled
from celery_poison.flower.extension_parts import HeldBack, HoldKind, all_parts, union

T = TypeVar("T")


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


async def do_known(of: Guarded, act: Callable[[], T]) -> T:
    """Do an act on what was typed; NothingChosen: there is no such thing, and a person must hear of it."""
    try:
        return await of.ledger.change(act)
    except MessageNotFound as unknown:
        raise NothingChosen(str(unknown)) from None


# --- what is held back (WAS-6, WAS-7, TP1-4): its kinds share a table, a form and the API ---------------


def hold_kinds() -> dict[str, HoldKind]:
    """Return how something is held back here."""
    return union(lambda part: part.holds)


def held_back(seen: Overview) -> list[HeldBack]:
    """Return everything that is held back."""
    return [line for part in all_parts() for line in part.held_back(seen)]


async def let_go(of: Guarded) -> Any:
    """End a pause, a suspension or a blockade.

    Raises:
        MessageNotFound: it is over, or never was.
        HTTPError: 400: there is no such kind.
    """
    kind, name, whose, note = map(of.said, ("kind", "name", "of", "note"))
    way = _one_of(hold_kinds(), kind, name)
    await of.ledger.change(partial(way.end, of.application.capp, name, whose, actor=of.actor, note=note))
    return {"kind": kind, "name": name, "of": whose, "note": note}


async def hold_back(of: Guarded) -> Any:
    """Pause a queue or a task, or send nothing more to a queue.

    Raises:
        NothingChosen: no such queue, or no such task, is known.
        HTTPError: 400: it is none of these.
    """
    kind, name, whose, note = map(of.said, ("kind", "name", "of", "note"))
    ways = {each: (way, way.begin) for each, way in hold_kinds().items() if way.begin}
    way, begin = _one_of(ways, kind, name)
    await do_known(of, partial(begin, of.application.capp, name, whose, actor=of.actor, note=note))
    return {"kind": kind, "name": name, "of": whose if way.has_of else "", "note": note}


def _one_of(kinds: dict[str, T], kind: str, name: str) -> T:
    if kind not in kinds or not name:
        raise HTTPError(400, f"kind must be one of {', '.join(kinds)}, and name must be given")
    return kinds[kind]
