"""Which of the plugin's files a process runs code of."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import celery_poison

#: Where the names of files are written to while it exists, one a line.
TRACE = "POISON_TEST_TRACE"
_ROOM = str(Path(celery_poison.__file__).parent) + os.sep


def recorder(path: str) -> Callable[[Any, str, Any], None]:
    """A profile function that notes the package's files whose code is called, and what in them was first."""
    noted: set[str] = set()

    def note(frame: Any, event: str, arg: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(_ROOM) and name not in noted and os.path.exists(path):
            noted.add(name)
            with open(path, "a") as out:
                out.write(f"{name.removeprefix(_ROOM)} {frame.f_code.co_qualname}\n")

    return note
