"""Numbers as a row of bars in a line of text."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value, the largest of full height; zero, and what is less, has the lowest."""
    highest = max(values, default=0)
    if highest <= 0:
        return _BARS[0] * len(values)
    last = len(_BARS) - 1
    return "".join(_BARS[round(last * max(0.0, value) / highest)] for value in values)
