"""Who is in quarantine, in few words: what groups, pages and metrics count, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from sys import intern
from typing import Any, NamedTuple, Protocol

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import Caller
from celery_poison.model import MessageRecord

_PAGE = 500
_INDEX_PAGE = 10_000
_FIELDS = ("task", "queue", "cause", "fingerprint", "releases", "first_seen", "quarantined_at")


class Inmate(NamedTuple):
    """One message in quarantine; times in seconds, as in :class:`~celery_poison.model.MessageRecord`."""

    mid: str
    task: str
    queue: str
    cause: str
    fingerprint: str
    releases: int
    first_seen: float
    quarantined_at: float


class Headcount(Protocol):
    """What knows who is in quarantine: a census, or whoever keeps more of each message anyway."""

    def take(self) -> Sequence[Inmate | MessageRecord]:
        """Return everybody who is in quarantine now, the newest first.

        Raises:
            LedgerUnavailable: Redis is away.
        """


class Census:
    """Reads all that is in quarantine, and the next time only what came since.

    These fields of a record are written once, when a message enters quarantine, under a score of the index
    that no later entry shares; so what was read stays true while mid and score stay. A census that is kept
    costs about 500 bytes of memory for each message.
    """

    def __init__(self, ledger: Caller) -> None:
        self._client = ledger.client
        self._keys = ledger.keys
        self._known: dict[tuple[bytes, float], Inmate] = {}

    def take(self) -> Sequence[Inmate]:
        """Return everybody who is in quarantine now, the newest first.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        index = self._index()
        known = self._known
        new = [entry for entry in index if entry not in known]
        found = dict(zip(new, self._read([mid for mid, _ in new]), strict=True))
        inmates = ((entry, known.get(entry) or found[entry]) for entry in index)
        self._known = {entry: inmate for entry, inmate in inmates if inmate}
        return [*self._known.values()]

    def _index(self) -> list[tuple[bytes, float]]:
        index: dict[tuple[bytes, float], None] = {}
        position = 0
        while True:
            with clear_errors("reading the index of the quarantine"):
                end = position + _INDEX_PAGE - 1
                page: Any = self._client.zrange(
                    self._keys.quarantine, position, end, desc=True, withscores=True
                )
            index.update(dict.fromkeys((mid, score) for mid, score in page))
            if len(page) < _INDEX_PAGE:
                return [*index]
            position += len(page)

    def _read(self, mids: list[bytes]) -> list[Inmate | None]:
        found: list[Inmate | None] = []
        for start in range(0, len(mids), _PAGE):
            page = mids[start : start + _PAGE]
            with clear_errors("reading who is in quarantine"):
                pipe = self._client.pipeline(transaction=False)
                for mid in page:
                    pipe.hmget(self._keys.message(mid.decode()), _FIELDS)
                rows = pipe.execute()
            found += (_inmate(mid.decode(), row) for mid, row in zip(page, rows, strict=True))
        return found


def _inmate(mid: str, row: Sequence[bytes | None]) -> Inmate | None:
    """Return whom a row tells of; None if he was let go between two looks."""
    if row[0] is None:
        return None
    # Many share the same few words: each is kept in memory once.
    task, queue, cause, fingerprint = (intern((word or b"").decode("utf-8", "replace")) for word in row[:4])
    releases, first_seen, quarantined_at = (int(number or 0) for number in row[4:])
    return Inmate(mid, task, queue, cause, fingerprint, releases, first_seen / 1000, quarantined_at / 1000)
