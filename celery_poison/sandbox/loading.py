"""Which app a fresh process has to load to run the tasks of this one, however this one got at it."""

from __future__ import annotations

import os
import runpy
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from celery import Celery
from celery.app.utils import find_app

#: Name of the module that a script becomes where it is loaded but not run, as multiprocessing calls it.
_SCRIPT = "__mp_main__"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an app comes from.

    Attributes:
        name: what ``celery -A`` takes, or empty.
        script: path of the script that makes the app, if it is in no module.
        attribute: its name in that script.
    """

    name: str = ""
    script: str = ""
    attribute: str = ""


def origin_of(app: Celery) -> Origin | None:
    """Return where ``app`` comes from; None when no other process could load it."""
    if name := _named_on_command_line():
        return Origin(name=name)
    for module in sorted(sys.modules.values(), key=_is_script):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is app and not attribute.startswith("_") and (found := _within(module, attribute)):
                return found
    return None


def _is_script(module: ModuleType) -> bool:
    return getattr(module, "__name__", "") in ("__main__", _SCRIPT)


def _within(module: ModuleType, attribute: str) -> Origin | None:
    if module.__name__.partition(".")[0] in ("celery", "celery_poison"):
        return None  # where Celery remembers it
    if not _is_script(module):
        return Origin(name=f"{module.__name__}:{attribute}")
    spec, script = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:  # run as ``python -m``
        return Origin(name=f"{spec.name}:{attribute}")
    return Origin(script=os.path.abspath(script), attribute=attribute) if script else None


def _named_on_command_line() -> str:
    if not os.path.basename(sys.argv[0]).startswith(("celery", "__main__")):
        return ""
    words = iter(sys.argv[1:])
    for word in words:
        if word in ("-A", "--app"):
            return next(words, "")
        if word.startswith("--app="):
            return word.removeprefix("--app=")
        if word.startswith("-A"):
            return word.removeprefix("-A").removeprefix("=")
    return os.environ.get("APP", "")


def environment_for(origin: Origin) -> dict[str, str]:
    """Return what Celery must find in its environment before it is imported, to name tasks as here."""
    return {"MP_MAIN_FILE": origin.script} if origin.script else {}


def load(origin: Origin) -> Celery:
    """Load the app in a fresh process.

    Raises:
        Exception: whatever the user's modules raise.
    """
    app: Any = find_app(origin.name) if origin.name else _from_script(origin)
    if not isinstance(app, Celery):
        raise TypeError(f"{origin} is not a Celery app but {app!r}")
    return app


def _from_script(origin: Origin) -> Any:
    # What the script does only as __main__ is not done again.
    content = runpy.run_path(origin.script, run_name=_SCRIPT)
    module = ModuleType(_SCRIPT)
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules[_SCRIPT] = module
    return content[origin.attribute]
