"""Numbers that come from outside: bounded, so that no reader trips over what somebody else has written."""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

#: Digits of a number that is believed: milliseconds since 1970 have thirteen.
DIGITS: Final = 15

_WHOLE: Final = re.compile(rf"-?[0-9]{{1,{DIGITS}}}", re.ASCII)


def is_whole(text: str) -> bool:
    """Whether a text is a whole number, and not longer than any that is written here."""
    return _WHOLE.fullmatch(text) is not None


def whole(text: str | bytes | None, default: int = 0) -> int:
    """Return the number in a text; the default where there is none, or none that is believed."""
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    return int(text) if text and is_whole(text) else default


def moment(score: float) -> int:
    """Return the milliseconds that are the score of a sorted set; 0 where that is no number of any clock."""
    return int(score) if isfinite(score) and abs(score) < 10**DIGITS else 0


def milliseconds(text: str | None) -> float | None:
    """Return the seconds in a text of milliseconds; None where there are none."""
    return int(text) / 1000 if text and is_whole(text) else None
