"""Messages in quarantine that belong together: of one task, dead of one cause, with the same arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from celery_poison.ledger.census import Inmate
from celery_poison.model import MessageRecord


class By(StrEnum):
    """How finely messages are grouped."""

    FINGERPRINT = "fingerprint"
    """task, cause and fingerprint"""
    CAUSE = "cause"
    """task and cause"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group, counted.

    Attributes:
        group: its id: the same as long as task, cause and fingerprint are, everywhere.
        fingerprint: empty where it makes no difference, or is not known.
        count: messages in quarantine.
        relapsed: those of them that had been released before, and died again.
        first_seen: when the first of them entered the ledger, in seconds since 1970.
        last_seen: when the newest came to quarantine.
        newest: the mid of that one.
    """

    group: str
    task: str
    cause: str
    fingerprint: str
    count: int
    relapsed: int
    first_seen: float
    last_seen: float
    newest: str

    def as_dict(self) -> dict[str, Any]:
        """Return what ``groups --json`` prints."""
        return asdict(self)


def group_id(task: str, cause: str, fingerprint: str | None = None) -> str:
    """Return the id of a group; without a fingerprint that of all messages of this task and cause."""
    words = (task, cause) if fingerprint is None else (task, cause, fingerprint)
    # Tagged by their number, so that no fingerprint, not even an empty one, makes two groups one.
    told = "\0".join((str(len(words)), *words))
    return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:12]


def group_ids(record: MessageRecord | Inmate) -> tuple[str, str]:
    """Return the ids of both groups that a message belongs to."""
    return (
        group_id(record.task, record.cause, record.fingerprint),
        group_id(record.task, record.cause),
    )


def grouped(messages: Iterable[Inmate | MessageRecord], by: By = By.FINGERPRINT) -> list[Group]:
    """Count messages by group, the largest group first, of equal ones the one with the newest message."""
    members: dict[tuple[str, str, str | None], list[Inmate | MessageRecord]] = {}
    for message in messages:
        fingerprint = message.fingerprint if by is By.FINGERPRINT else None
        members.setdefault((message.task, message.cause, fingerprint), []).append(message)
    found = [_group(*key, of_it) for key, of_it in members.items()]
    return sorted(found, key=lambda group: (-group.count, -group.last_seen, group.group))


def _group(task: str, cause: str, fingerprint: str | None, of_it: list[Inmate | MessageRecord]) -> Group:
    newest = max(of_it, key=_arrival)
    return Group(
        group=group_id(task, cause, fingerprint),
        task=task,
        cause=cause,
        fingerprint=fingerprint or "",
        count=len(of_it),
        relapsed=sum(message.releases > 0 for message in of_it),
        first_seen=min(message.first_seen or _arrival(message) for message in of_it),
        last_seen=_arrival(newest),
        newest=newest.mid,
    )


def _arrival(message: Inmate | MessageRecord) -> float:
    return message.quarantined_at or message.first_seen or 0.0
