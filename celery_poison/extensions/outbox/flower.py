"""Flower's lines and buttons of destinations that wait, and the form that blocks sending (TP1-4, TP1-6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery

from celery_poison.desk.overview import Overview
from celery_poison.extensions.outbox.desk import OutboxDesk
from celery_poison.extensions.outbox.lanes import LaneRecord
from celery_poison.extensions.outbox.send_failures import Cause
from celery_poison.flower.access import Guarded
from celery_poison.flower.act_pages import do_known
from celery_poison.flower.choosing import NothingChosen
from celery_poison.flower.extension_parts import FlowerPart, HeldBack, HoldKind
from celery_poison.plugin import plugin_of

#: Sending to a queue, beside the scopes of a pause, and what the block list goes by.
SENDING = "sending"
#: Seconds after which rows of the user's database should have been moved, even if a relay died.
OVERDUE = 30.0


def held_back(seen: Overview) -> Iterator[HeldBack]:
    yield from _unsent(seen.panel("outbox") or ())
    rows = seen.panel("outbox_database")
    if rows and rows.oldest and seen.at - rows.oldest > OVERDUE:
        story = "Messages in your own database are not moved into the outbox"
        yield HeldBack(SENDING, "", "", story, since=rows.oldest, waiting=rows.rows, can_go=False)


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


def _why(cause: str) -> str:
    return Cause(cause).row.sentence if cause in {*Cause} else cause


def _block(app: Celery, queue: str, of: str, **how: Any) -> object:
    return OutboxDesk(plugin_of(app)).block(queue, of, **how)


def _unblock(app: Celery, queue: str, of: str, **how: Any) -> object:
    return OutboxDesk(plugin_of(app)).unblock(queue, of, **how)


async def block(of: Guarded) -> Any:
    """Send nothing more to a queue, or nothing of one task; ``consuming``: consume it no more, too."""
    queue, task, expires = (of.said(each).strip() for each in ("name", "task", "expires"))
    consuming = of.said("consuming") == "1"
    if not queue:
        raise NothingChosen("Say which queue")
    if expires:
        raise NothingChosen("Sending to a queue has no time limit: it stays blocked until it is unblocked")
    if consuming and task:
        raise NothingChosen("Consuming is about a whole queue: leave the task empty, or pause the task")
    desk = OutboxDesk(plugin_of(of.application.capp))
    how: dict[str, Any] = {"consuming": consuming, "actor": of.actor, "note": of.said("note")}
    is_new = await do_known(of, partial(desk.block, queue, task, **how))
    return {"kind": SENDING, "name": queue, "task": task, "new": is_new}


_HOLD = HoldKind(_unblock, _block, "the outbox sends nothing to the queue", has_of=True, button="Unblock")
PART = FlowerPart(
    held_back=held_back,
    holds={SENDING: _HOLD},
    blocks={SENDING: (block, str(Path(__file__).with_name("block.html")))},
)
