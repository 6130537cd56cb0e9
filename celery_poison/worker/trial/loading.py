"""Which app a fresh process has to load to run the tasks of this one, however this one got at it."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.app.utils import find_app


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an app comes from.

    Attributes:
        name: what ``celery -A`` takes, or empty.
        script: path of the script that makes the app, if it is in no module.
        attribute: its name in that script.
        path: ``sys.path`` of the process that loaded it.
    """

    name: str = ""
    script: str = ""
    attribute: str = ""
    path: Sequence[str] = ()


def origin_of(app: Celery) -> Origin | None:
    """Return where ``app`` comes from; None when no other process could load it."""
    path = tuple(sys.path)
    if name := _named_on_command_line():
        return Origin(name=name, path=path)
    for module in list(sys.modules.values()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is not app or attribute.startswith("_"):
                continue
            if module.__name__ != "__main__":
                return Origin(name=f"{module.__name__}:{attribute}", path=path)
            if script := getattr(module, "__file__", None):
                return Origin(script=os.path.abspath(script), attribute=attribute, path=path)
    return None


def _named_on_command_line() -> str:
    words = iter(sys.argv[1:])
    for word in words:
        if word in ("-A", "--app"):
            return next(words, "")
        if word.startswith("--app="):
            return word.removeprefix("--app=")
        if word.startswith("-A"):
            return word.removeprefix("-A").removeprefix("=")
    return os.environ.get("APP", "") if os.path.basename(sys.argv[0]).startswith("celery") else ""


def load(origin: Origin) -> Celery:
    """Load the app in a fresh process.

    Raises:
        Exception: whatever the user's modules raise.
    """
    sys.path[:] = [*origin.path]
    app: Any
    if origin.name:
        app = find_app(origin.name)
    else:
        # As multiprocessing does it: what the script does only as __main__ is not done again.
        app = runpy.run_path(origin.script, run_name="__mp_main__")[origin.attribute]
    if not isinstance(app, Celery):
        raise TypeError(f"{origin} is not a Celery app but {app!r}")
    return app
