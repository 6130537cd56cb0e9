"""How the journal is read: one task's entries, or all; ``LedgerUnavailable`` when Redis is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import redis

from celery_poison.basics.text import decoded
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.journal import FIELDS
from celery_poison.ledger.keys import Keys

#: Whether an entry is meant.
Wanted = Callable[[Mapping[str, str]], bool]

_PAGE = 1000
#: Entries that are read at most, beginning at ``since``, without it at the newest.
ENTRIES_READ = 50_000
#: An entry may be so many milliseconds later than what its script took for the time: Redis had to wait.
_LATER_MS = 1000
#: An older version's entries lack the fields that have been added since.
_EMPTY = dict.fromkeys(FIELDS, "")


def history(
    client: redis.Redis,
    keys: Keys,
    id: str,
    *,
    since: float | None = None,
    until: float | None = None,
) -> list[dict[str, str]]:
    """Return the journal's entries about the task ids that begin with ``id``, or that mid, oldest first.

    The fewer entries lie between ``since`` and ``until``, the faster.

    Args:
        since, until: seconds of Redis' clock that bound what is read; None: the journal's ends.
    """
    entries: list[dict[str, str]] = []
    wanted, read = id.encode(), 0
    first = "-" if since is None else str(int(since * 1000))
    last = "+" if until is None else str(int(until * 1000) + _LATER_MS)
    for rows in _pages(client, keys.journal, first, last, newest_first=since is None):
        about = (
            (key, row)
            for key, row in rows
            if row.get(b"id", b"").startswith(wanted) or row.get(b"mid") == wanted
        )
        entries += [entry(key, row) for key, row in about]
        read += len(rows)
        if read >= ENTRIES_READ:
            break
    return sorted(entries, key=lambda found_entry: position(found_entry["at"]))


def newest(
    client: redis.Redis, keys: Keys, count: int, wanted: Wanted, since: float | None
) -> list[dict[str, str]]:
    """Return the newest entries that are wanted, oldest first; see ``Views.journal``."""
    first, entries, read = "-" if since is None else str(int(since * 1000)), list[dict[str, str]](), 0
    for rows in _pages(client, keys.journal, first, "+", newest_first=True):
        entries += filter(wanted, (entry(key, row) for key, row in rows))
        read += len(rows)
        if len(entries) >= count or read >= ENTRIES_READ:
            break
    return entries[:count][::-1]


def of_task(
    client: redis.Redis,
    keys: Keys,
    task: str,
    since: float,
    until: float,
    *,
    enough: int,
    most: int,
    seconds: float,
) -> tuple[list[dict[str, str]], float]:
    """Return the newest entries about messages of a task, newest first, and how far back was read.

    Args:
        since, until: seconds of Redis' clock between which is read, from the newest on.
        enough: entries of the task after which no more is read.
        most: entries of all tasks that are read.
        seconds: after so many no more is read.

    Returns:
        The second one is ``since``, or the moment of the oldest entry that was read.
    """
    entries, read, wanted = list[dict[str, str]](), 0, task.encode()
    over = time.monotonic() + seconds
    first, last = str(int(since * 1000)), str(int(until * 1000))
    for rows in _pages(client, keys.journal, first, last, newest_first=True):
        entries += [entry(key, row) for key, row in rows if row.get(b"task") == wanted]
        read += len(rows)
        is_enough = read >= most or len(entries) >= enough or time.monotonic() >= over
        if len(rows) == _PAGE and is_enough:
            return entries, int(rows[-1][0].partition(b"-")[0]) / 1000
    return entries, since


def entry(key: bytes, row: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return one entry as text; ``at`` is its stream id, which begins with ms of Redis' clock."""
    fields = {decoded(k): decoded(v) for k, v in row.items()}
    return {"at": decoded(key), **_EMPTY, **fields}


def position(at: str) -> tuple[int, ...]:
    """Return a stream id as numbers that sort as the stream does."""
    return tuple(int(part) for part in at.split("-"))


def _pages(
    client: redis.Redis, stream: str, first: str, last: str, *, newest_first: bool = False
) -> Iterator[list[Any]]:
    while True:
        with clear_errors("reading the journal"):
            if newest_first:
                rows: Any = client.xrevrange(stream, last, first, _PAGE)
            else:
                rows = client.xrange(stream, first, last, _PAGE)
        yield rows
        if len(rows) < _PAGE:
            return
        beyond = f"({decoded(rows[-1][0])}"
        first, last = (first, beyond) if newest_first else (beyond, last)


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
    """Return how far the journal reaches now."""
    with clear_errors("reading the journal"):
        if not client.exists(keys.journal):
            return Extent(0, "", "", 0)
        info: Any = client.xinfo_stream(keys.journal)
    length, added = int(info["length"]), info.get("entries-added")
    first, last = (decoded(row[0]) if row else "" for row in (info["first-entry"], info["last-entry"]))
    return Extent(length, first, last, None if added is None else int(added) - length)


def extract(client: redis.Redis, keys: Keys, *, after: str = "", until: str) -> Iterator[dict[str, str]]:
    """Yield the entries after the one with id ``after`` (empty: from the oldest on) up to ``until``."""
    for rows in _pages(client, keys.journal, f"({after}" if after else "-", until):
        yield from (entry(key, row) for key, row in rows)
