"""What extensions bring to these pages: a room's module ``flower``, loaded by its name, as its ``verbs`` are.

Such a module may have ``ROUTES``, as :func:`celery_poison.flower.handlers` has them, and ``DOWNLOADS``: the
name of a route of a message's id -> the label of its link on the message's page, and its title.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from celery_poison.extension import EXTENSIONS


def is_here(room: str) -> bool:
    """Whether an extension was not left out."""
    return room in import_module(EXTENSIONS).ORDER


def routes() -> list[Any]:
    """Return the routes of all extensions."""
    return [route for part in _parts() for route in getattr(part, "ROUTES", ())]


def downloads() -> Mapping[str, tuple[str, str]]:
    """Return what can be had of a message in quarantine, beside its body."""
    return {name: link for part in _parts() for name, link in getattr(part, "DOWNLOADS", {}).items()}


def _parts() -> list[ModuleType]:
    places = [f"{EXTENSIONS}.{room}.flower" for room in import_module(EXTENSIONS).ORDER]
    return [import_module(place) for place in places if find_spec(place)]
