"""What extensions bring to these pages: ``PART`` of a room's module ``flower``, loaded by its name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from celery_poison.basics.rooms import rooms_with
from celery_poison.causes import Evidence
from celery_poison.desk.overview import Overview

_NONE: Mapping[str, Any] = MappingProxyType({})


class HeldBack(NamedTuple):
    """One line of what is held back.

    Attributes:
        kind: one of ``FlowerPart.holds``.
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


class HoldKind(NamedTuple):
    """One way to hold something back; both acts take the app, name and ``of``, ``actor`` and ``note``.

    Attributes:
        begin: None: no person begins it. ``label`` says what it does, ``has_of`` whether it heeds ``of``.
        button: of ``end``.
    """

    end: Callable[..., object]
    begin: Callable[..., object] | None = None
    label: str = ""
    has_of: bool = False
    button: str = "Resume"


class FlowerPart(NamedTuple):
    """The pages and panels of one extension.

    Attributes:
        routes, api: as ``flower.handlers``, and ``ROUTES`` of ``api``, have them.
        downloads: route of a message's id -> label and title of its link on the message's page.
        pictures: title -> what draws a picture of the evidence of a death, as an SVG; empty for none.
        sections: paths of templates, shown above the list of messages.
        held_back: returns the lines of what is held back; ``holds``: kind -> what begins and ends it.
        blocks: kind -> what blocks it, beside tasks and fingerprints, and the path of its fields' template.
    """

    routes: Sequence[Any] = ()
    api: Mapping[str, Mapping[str, Callable[..., Awaitable[Any]]]] = _NONE
    downloads: Mapping[str, tuple[str, str]] = _NONE
    pictures: Mapping[str, Callable[[Evidence], str]] = _NONE
    sections: Sequence[str] = ()
    held_back: Callable[[Overview], Iterable[HeldBack]] = lambda seen: ()
    holds: Mapping[str, HoldKind] = _NONE
    blocks: Mapping[str, tuple[Callable[[Any], Awaitable[Any]], str]] = _NONE


def all_parts() -> list[FlowerPart]:
    """Return the parts of all extensions that were not left out, by the names of their rooms."""
    return [room.PART for room in sorted(rooms_with("flower"), key=attrgetter("__name__"))]


def union(of: Callable[[FlowerPart], Mapping[str, Any]]) -> dict[str, Any]:
    """Return one attribute of all parts as one."""
    return {name: value for part in all_parts() for name, value in of(part).items()}
