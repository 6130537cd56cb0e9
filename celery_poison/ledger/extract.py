"""The journal as a whole, oldest first, and what of it was trimmed before anybody read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.history import entry, position
from celery_poison.ledger.keys import Keys

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the journal reaches at one moment.

    Attributes:
        length: number of entries.
        first, last: ids of its oldest and its newest entry; empty when there is none.
        trimmed: entries that were trimmed since it was begun; None where Redis (before 7.0) does not count.
    """

    length: int
    first: str
    last: str
    trimmed: int | None

    def may_lack(self, after: str) -> bool:
        """Whether entries that came after the one with id ``after`` may be gone."""
        if not after or self.trimmed == 0:
            return False
        return not self.first or position(self.first) > position(after)


def extent(client: redis.Redis, keys: Keys) -> Extent:
    """Return how far the journal reaches now.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading the journal"):
        if not client.exists(keys.journal):
            return Extent(0, "", "", 0)
        info: Any = client.xinfo_stream(keys.journal)
    length, added = int(info["length"]), info.get("entries-added")
    first, last = (row[0].decode() if row else "" for row in (info["first-entry"], info["last-entry"]))
    return Extent(length, first, last, None if added is None else int(added) - length)


def extract(client: redis.Redis, keys: Keys, *, after: str = "", until: str) -> Iterator[dict[str, str]]:
    """Yield the entries after the one with id ``after`` (empty: from the oldest on) up to ``until``.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    while True:
        with clear_errors("reading the journal"):
            rows: Any = client.xrange(keys.journal, f"({after}" if after else "-", until, count=_PAGE)
        yield from (entry(key, row) for key, row in rows)
        if len(rows) < _PAGE:
            return
        after = rows[-1][0].decode()
