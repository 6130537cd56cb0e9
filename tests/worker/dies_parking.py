"""A worker that is killed once, between storing what goes back later and acknowledging it."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery_poison.ledger.parking import ParkingTransitions
from tests.worker.apps import build, here

app = build(os.environ, current=True)

_park = ParkingTransitions.park


def park(self: Any, mid: str, *args: Any, **words: Any) -> bool:
    is_parked = _park(self, mid, *args, **words)
    if words.get("pause") and not here().all("parking", "dies"):
        here().leave("parking", mid, "dies")
        os.kill(-os.getpgrp(), signal.SIGKILL)
    return is_parked


ParkingTransitions.park = park  # type: ignore[method-assign]
