"""Words for people: what was stored is made harmless, moments and spans are told briefly."""

from __future__ import annotations

import time


def clean(text: object) -> str:
    """Return one line of printable text; control characters become visible escapes."""
    told = str(text)
    if told.isprintable():
        return told
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in told)


def when(seconds: float | None) -> str:
    """Return a moment as local date and time, with the zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds)) if seconds else "-"


def duration(seconds: float) -> str:
    """Return a span of time in its largest unit, e.g. ``12s``, ``5m``, ``3h``, ``2d``."""
    seconds = max(0.0, seconds)
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds / unit:.0f}{name}"
    return f"{seconds:.0f}s"


def count_of(number: int, noun: str) -> str:
    """Return number and noun, e.g. ``1 message``, ``2 processes``."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"
