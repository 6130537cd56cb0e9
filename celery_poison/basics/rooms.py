"""Modules of extensions that are found by their names: nothing of the core imports an extension."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

#: The package of all extensions.
EXTENSIONS = "celery_poison.extensions"


def rooms_with(part: str) -> tuple[Any, ...]:
    """Return the modules of a name that extensions have, in their order; none where all were left out."""
    return _modules(part, import_module(EXTENSIONS).ORDER) if find_spec(EXTENSIONS) else ()


def all_rooms() -> tuple[Any, ...]:
    """Return the packages of all extensions, in their order."""
    order = import_module(EXTENSIONS).ORDER if find_spec(EXTENSIONS) else ()
    return tuple(import_module(f"{EXTENSIONS}.{room}") for room in order)


@cache
def _modules(part: str, rooms: tuple[str, ...]) -> tuple[Any, ...]:
    places = (f"{EXTENSIONS}.{room}.{part}" for room in rooms)
    return tuple(import_module(place) for place in places if find_spec(place))
