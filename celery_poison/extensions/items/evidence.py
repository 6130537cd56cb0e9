"""Evidence of a loop: the item at which its task died (NEW-20)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from celery_poison.causes import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopEvidence:
    """Of a loop that goes through items by ``self.poison.each``.

    Attributes:
        items: how many there are.
        item: number of the item at which the loop stood, from 1.
        item_key: what names that item, unless ``poison_redact`` hides it.
        item_is: ``in``: it died at that item; ``next``: after it, and before the next one began; ``left``: it
            had left the loop at that item; ``over``: it had been through all. Where no item is known:
            ``handed_on``, ``kept``, ``elsewhere``, ``torn``.
    """

    items: int | None = None
    item: int | None = None
    item_key: str = ""
    item_is: str = ""


FIELDS = LoopEvidence

#: Why no item is known.
_UNKNOWN: Final[Mapping[str, str]] = {
    "handed_on": "its rows do not go straight into a for statement",
    "kept": "the loop keeps its rows, or has begun a thread",
    "elsewhere": "the code that died was not within the loop",
    "torn": "its mark was being written",
}


def sentence_of(evidence: Evidence) -> str:
    """How far its loop came, in plain words; the empty string where it has none."""
    loop = evidence.of(LoopEvidence)
    of = "" if loop.items is None else f" of {loop.items:,}"
    if loop.item_is in _UNKNOWN:
        return f"The item{of} at which it died is unknown: {_UNKNOWN[loop.item_is]}."
    key = f" (key {loop.item_key})" if loop.item_key else ""
    words = {
        "in": f"It died at item {loop.item or 0:,}{key}{of}.",
        "next": f"It died after {loop.item or 0:,}{of} items, before the next one began.",
        "left": f"It had left its loop at item {loop.item or 0:,}{key}{of}.",
        "over": f"It had been through all {'' if loop.item is None else f'{loop.item:,} '}items.",
    }
    return words.get(loop.item_is, "")
