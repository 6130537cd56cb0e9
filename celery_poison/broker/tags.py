"""The delivery tags that this package gives: the boot id of the receiver, and a number that grows."""

from __future__ import annotations

import re

_OWNED = re.compile(r"([0-9a-f]{16}(?:r\d+)?)-\d+")


def owner_of(tag: str) -> str | None:
    """Return the boot id in a delivery tag; None for a tag that plain kombu gave."""
    match = _OWNED.fullmatch(tag)
    return match[1] if match else None


def number_of(tag: str) -> int:
    """Return the place of a tag among those of its worker process: the older, the smaller."""
    number = tag.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
