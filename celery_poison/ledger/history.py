"""What the journal says about one task, read from a stream that has no index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import redis

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.journal import FIELDS
from celery_poison.ledger.keys import Keys

#: Entries that are read at most, beginning at ``since``, without it at the newest.
MOST = 50_000
_PAGE = 1000
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
    """Return the journal's entries about one task id, oldest first.

    The fewer entries lie between ``since`` and ``until``, the faster.

    Args:
        since, until: seconds of Redis' clock that bound what is read; None: the journal's ends.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    found: list[dict[str, str]] = []
    wanted, read = id.encode(), 0
    for rows in _pages(client, keys.journal, since, until):
        found += [entry(key, row) for key, row in rows if row.get(b"id") == wanted]
        read += len(rows)
        if read >= MOST:
            break
    return sorted(found, key=lambda found_entry: position(found_entry["at"]))


def entry(key: bytes, row: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return one entry as text; ``at`` is its stream id, which begins with ms of Redis' clock."""
    told = {k.decode(): v.decode("utf-8", "replace") for k, v in row.items()}
    return {"at": key.decode(), **_EMPTY, **told}


def position(at: str) -> tuple[int, ...]:
    """Return a stream id as numbers that sort as the stream does."""
    return tuple(int(part) for part in at.split("-"))


def _pages(client: redis.Redis, stream: str, since: float | None, until: float | None) -> Iterator[list[Any]]:
    first = "-" if since is None else str(int(since * 1000))
    last = "+" if until is None else str(int(until * 1000) + 1)
    while True:
        with clear_errors("reading the journal"):
            if since is None:
                rows: Any = client.xrevrange(stream, last, first, _PAGE)
            else:
                rows = client.xrange(stream, first, last, _PAGE)
        yield rows
        if len(rows) < _PAGE:
            return
        beyond = f"({rows[-1][0].decode()}"
        first, last = (first, beyond) if since is None else (beyond, last)
