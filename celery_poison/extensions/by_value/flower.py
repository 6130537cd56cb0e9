"""Flower's lines and buttons of holds by value (NEW-27)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import Celery

from celery_poison.basics.text import command, count_of, when
from celery_poison.desk.overview import Overview
from celery_poison.desk.store import Store
from celery_poison.errors import ConfigurationError, PoisonError
from celery_poison.extensions.by_value.desk import ValueHoldDesk
from celery_poison.extensions.by_value.value_holds import EVERY_TASK
from celery_poison.flower.choosing import NothingChosen
from celery_poison.flower.extension_parts import FlowerPart, HeldBack, HoldKind

#: Beside the scopes of a pause.
VALUE = "value"
#: Messages in quarantine that a lift in Flower releases at most.
MOST = 100


def held_back(seen: Overview) -> Iterator[HeldBack]:
    shown = seen.panel("value_holds") or {"holds": ()}
    for each in shown["holds"]:
        if each.is_spent:
            continue
        hold, keeps = each.hold, [f"{each.in_quarantine} in quarantine"]
        keeps += [f"{count_of(each.waiting, 'message')} waiting"] if hold.waits else []
        keeps += ["it is over"] if each.over else [f"until {when(hold.until)}"] if hold.until else []
        story = f"Hold {hold.number}: messages with {hold.words} do not begin ({', '.join(keeps)})"
        yield HeldBack(VALUE, str(hold.number), "", story, hold.actor, hold.note, hold.since)


def _hold(app: Celery, where: str, task: str, **how: Any) -> object:
    try:
        return ValueHoldDesk(Store(app)).hold(where, task=task or EVERY_TASK, **how)
    except ConfigurationError as wrong:
        raise NothingChosen(str(wrong)) from None


def _lift(app: Celery, number: str, of: str, **how: Any) -> object:
    if not (number.isascii() and number.isdecimal() and len(number) < 16):
        raise NothingChosen(f"{number[:20]!r} is the number of no hold")
    desk = ValueHoldDesk(Store(app))
    keeps = next((each for each in desk.value_holds() if each.hold.number == int(number)), None)
    if keeps is not None and keeps.quarantined > MOST:  # a request does not last as long as their release
        raise NothingChosen(f"{keeps.in_quarantine} to release: {command(f'poison hold lift {number}')}")
    lifted = desk.lift(int(number), **how)
    if not lifted.lifted:
        why = next((each.error for each in lifted.outcomes if not each.done), "type it again")
        raise PoisonError(f"hold {number} stays in force: {why}")
    return lifted


_LABEL = "messages with such arguments do not begin: project_id=42"
PART = FlowerPart(
    held_back=held_back, holds={VALUE: HoldKind(_lift, _hold, _LABEL, has_of=True, button="Lift")}
)
