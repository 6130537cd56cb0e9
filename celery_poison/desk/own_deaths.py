"""The deaths of one message side by side: whether all of them were alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from celery_poison import causes
from celery_poison.causes import Evidence, is_users
from celery_poison.states import Event


class Death(NamedTuple):
    """One death of a message.

    Attributes:
        place: where the user's code was, as ``function (file:line)``; empty where that is not on record.
    """

    cause: str
    place: str


def deaths_of(history: Sequence[Mapping[str, str]]) -> list[Death]:
    """Return the deaths since the last release, in their order.

    Args:
        history: entries of the journal about the message, oldest first.
    """
    deaths = list[Death]()
    for entry in history:
        if entry.get("event") == Event.RELEASED:
            deaths.clear()  # what was repaired meanwhile is not known
        elif entry.get("event") == Event.CRASHED:
            source = Evidence.decode(entry.get("evidence", "")).source
            deaths.append(Death(entry.get("cause", ""), source if is_users(source) else ""))
    return deaths


def causes_of(deaths: Sequence[Death]) -> list[str]:
    """Return the causes of deaths in their order, the same ones in a row once."""
    causes_in_turn = list[str]()
    for death in deaths:
        if death.cause and death.cause not in causes_in_turn[-1:]:
            causes_in_turn.append(death.cause)
    return causes_in_turn


def place_of(deaths: Sequence[Death], evidence: Evidence) -> str:
    """Return where the user's code was at the last death that tells, else a library's; empty where none does.

    Args:
        evidence: of the last death; the journal may have lost its entry.
    """
    own = evidence.source if is_users(evidence.source) else ""
    earlier = next((death.place for death in reversed(deaths) if death.place), "")
    return own or earlier or ("" if "(<" in evidence.source else evidence.source)


def are_at_one_place(deaths: Sequence[Death]) -> bool:
    """Whether several deaths found the user's code in the same line."""
    places = {death.place for death in deaths}
    return len(deaths) > 1 and len(places) == 1 and "" not in places


def comparison(deaths: Sequence[Death]) -> str:
    """Return in one sentence how several deaths differ, or that all were at one place; else nothing."""
    if len(deaths) < 2:
        return ""
    if len(causes_of(deaths)) > 1:
        each = (f"{causes.short(d.cause) or 'unknown'}{f' in {d.place}' if d.place else ''}" for d in deaths)
        return f"Its deaths differ: {', then '.join(each)}."
    if are_at_one_place(deaths):
        return f"{'Both' if len(deaths) == 2 else f'All {len(deaths)}'} deaths were there."
    return ""
