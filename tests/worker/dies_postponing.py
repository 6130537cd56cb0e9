"""A worker that is killed with all its processes at a step of a message whose task only others know."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery_poison.ledger.parking import ParkingTransitions
from tests.worker.apps import build

app = build(os.environ, current=True)

_park, _unpark = ParkingTransitions.park, ParkingTransitions.unpark


def _die_at(step: str) -> None:
    if os.environ.get("DIES_AT") == step:
        os.kill(-os.getpgrp(), signal.SIGKILL)


def park(self: Any, mid: str, *args: Any, **words: Any) -> bool:
    _die_at("before it is parked")
    is_parked = _park(self, mid, *args, **words)
    _die_at("parked, not acknowledged")
    return is_parked


def unpark(self: Any, mid: str, number: int) -> bool:
    _die_at("published, not noted")
    return _unpark(self, mid, number)


ParkingTransitions.park = park  # type: ignore[method-assign]
ParkingTransitions.unpark = unpark  # type: ignore[method-assign]
