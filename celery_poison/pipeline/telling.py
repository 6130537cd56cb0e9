"""What every command of the pipeline says in the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_poison.pipeline.lake import Gap, LeftOut
from celery_poison.text import clean


@dataclass(frozen=True)
class AsOf:
    """Of which journal the tables are.

    Attributes:
        version: of the journal's table.
        upto: the newest entry that they know, and ``at`` its time; None where there is none.
        gaps: what never came into the lake.
        left_out: what is in the lake and not in the tables.
    """

    version: int
    upto: str
    at: datetime | None
    gaps: tuple[Gap, ...]
    left_out: tuple[LeftOut, ...]

    def says(self) -> str:
        """Return in words of which history the tables are."""
        end = f"{self.at:%Y-%m-%d %H:%M} UTC" if self.at else "an empty journal"
        return f"as of version {self.version} of the lake, up to {end}"


def told_gap(gap: Gap) -> str:
    """Return a gap in words."""
    many = "an unknown number of" if gap.missing is None else str(gap.missing)
    return f"GAP: {many} entries between {gap.after} and {gap.upto}: {gap.why}"


def sentences(left_out: Sequence[LeftOut], gaps: Sequence[Gap]) -> list[str]:
    """Return what is in the lake and was not read, what never came into it, and why."""
    told = []
    for left in left_out:
        rows = f" ({left.rows} entries)" if left.rows is not None else ""
        told.append(f"left out: {clean(left.where)}{rows}: {clean(left.why)}")
    return told + [told_gap(gap) for gap in gaps]
