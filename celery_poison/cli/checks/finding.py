"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        level: ok; warn: works, with a weakness; FAIL: promises are broken.
        cure: what to do about it.
    """

    check: str
    level: Level
    said: str
    cure: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
