"""Workers that are killed, once for each message, just before or just after they have stored a failure."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery_poison.worker.quarantine_writer import QuarantineWriter
from tests.worker.apps import build, here

app = build(os.environ, current=True)

_write = QuarantineWriter.write


def _die_once(id: str, when: str, message: str) -> None:
    died = any(mark.id == id for mark in here().all("keeping", "dies"))
    if message.startswith(when) and not died:
        here().leave("keeping", id, "dies")
        os.kill(-os.getpgrp(), signal.SIGKILL)


def write(
    self: Any, message: Any, mid: str, start: Any, cause: str, reason: str, failure: Any = None, **more: Any
) -> None:
    _die_once(start.id, "before", failure.message)
    _write(self, message, mid, start, cause, reason, failure, **more)
    _die_once(start.id, "after", failure.message)


QuarantineWriter.write = write  # type: ignore[method-assign]
