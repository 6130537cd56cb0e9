"""What the evidence of a death says of a loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from celery_poison.causes import Evidence

#: Why no item is known.
_UNKNOWN: Final[Mapping[str, str]] = {
    "handed_on": "its rows do not go straight into a for statement",
    "kept": "the loop keeps its rows, or has begun a thread",
    "elsewhere": "the code that died was not within the loop",
    "torn": "its mark was being written",
}


def sentence_of(evidence: Evidence) -> str:
    """How far its loop came, in plain words; the empty string where it has none."""
    of = "" if evidence.items is None else f" of {evidence.items:,}"
    if evidence.item_is in _UNKNOWN:
        return f"The item{of} at which it died is unknown: {_UNKNOWN[evidence.item_is]}."
    key = f" (key {evidence.item_key})" if evidence.item_key else ""
    words = {
        "in": f"It died at item {evidence.item or 0:,}{key}{of}.",
        "next": f"It died after {evidence.item or 0:,}{of} items, before the next one began.",
        "left": f"It had left its loop at item {evidence.item or 0:,}{key}{of}.",
        "over": f"It had been through all {'' if evidence.item is None else f'{evidence.item:,} '}items.",
    }
    return words.get(evidence.item_is, "")
