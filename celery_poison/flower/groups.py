"""Messages that belong together: of one task, dead of one cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from celery_poison.records import MessageRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group, counted; ``relapsed`` had been released before, and died again."""

    task: str
    cause: str
    count: int
    relapsed: int
    first_seen: float
    last_seen: float
    newest: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def grouped(records: Iterable[MessageRecord]) -> list[Group]:
    """Count messages by task and cause, the largest group first."""
    members: dict[tuple[str, str], list[MessageRecord]] = {}
    for record in records:
        members.setdefault((record.task, record.cause), []).append(record)
    groups = [_group(task, cause, of_it) for (task, cause), of_it in members.items()]
    return sorted(groups, key=lambda group: (-group.count, -group.last_seen))


def _group(task: str, cause: str, members: list[MessageRecord]) -> Group:
    newest = max(members, key=_arrival)
    return Group(
        task=task,
        cause=cause,
        count=len(members),
        relapsed=sum(record.releases > 0 for record in members),
        first_seen=min(record.first_seen or _arrival(record) for record in members),
        last_seen=_arrival(newest),
        newest=newest.mid,
    )


def _arrival(record: MessageRecord) -> float:
    return record.quarantined_at or record.first_seen or 0.0
