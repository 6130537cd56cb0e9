"""Rows of Spark as what JSON can hold."""

from __future__ import annotations

import math
from datetime import date, datetime
from typing import Any


def plain_rows(frame: Any) -> list[dict[str, Any]]:
    """Collect a small DataFrame; times become text (UTC), and numbers that are none, too."""
    return [{name: _plain(value) for name, value in row.asDict().items()} for row in frame.collect()]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
