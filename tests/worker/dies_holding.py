"""Workers that are killed once before and once after each step by which a hold by value keeps a message."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery_poison.ledger.parking import ParkingTransitions
from celery_poison.worker.quarantine_writer import QuarantineWriter
from tests.worker.apps import build, here

app = build(os.environ, current=True)

_write, _park = QuarantineWriter.write, ParkingTransitions.park


def _die(step: str) -> None:
    if not here().all(step, "dies"):
        here().leave(step, step, "dies")
        os.kill(-os.getpgrp(), signal.SIGKILL)


def write(self: Any, message: Any, mid: str, start: Any, cause: str, *args: Any, **more: Any) -> None:
    if cause == "held":
        _die("before quarantine")
    _write(self, message, mid, start, cause, *args, **more)
    if cause == "held":
        _die("after quarantine")


def park(self: Any, *args: Any, **words: Any) -> bool:
    if words.get("awaits"):
        _die("before parking")
    is_parked = _park(self, *args, **words)
    if words.get("awaits"):
        _die("after parking")
    return is_parked


QuarantineWriter.write = write  # type: ignore[method-assign]
ParkingTransitions.park = park  # type: ignore[method-assign]
