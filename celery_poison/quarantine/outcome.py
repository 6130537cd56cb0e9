"""What became of the messages of one act."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one message: done, or refused for a reason. ``mid`` is empty if it was not found."""

    mid: str
    id: str
    task: str
    done: bool
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


#: Hears of each outcome at once, so that nothing is forgotten when Redis goes away in the middle.
Listener = Callable[[Outcome], object]
