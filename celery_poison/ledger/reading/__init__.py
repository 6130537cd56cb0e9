"""Reading changes nothing. What all readers share: the clock, long indexes, the decoding of hashes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, TypeVar

import redis

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.keys import Keys

_T = TypeVar("_T")

#: Entries that are read in one exchange with Redis.
PAGE = 500


class Readable(Protocol):
    """What is read: a :class:`~celery_poison.ledger.Ledger`."""

    client: redis.Redis
    keys: Keys


class Reader:
    """Reads one ledger; every method raises ``LedgerUnavailable`` when Redis is away."""

    def __init__(self, ledger: Readable) -> None:
        self._client = ledger.client
        self._keys = ledger.keys

    def now_ms(self) -> int:
        """Return Redis' clock, the only one that the plugin believes."""
        with clear_errors("reading the clock"):
            answer: Any = self._client.time()
            seconds, micros = answer
        return int(seconds) * 1000 + int(micros) // 1000

    def _pages(self, index: str, newest_first: bool) -> Iterator[list[str]]:
        position = 0
        while True:
            with clear_errors("reading an index"):
                page: Any = self._client.zrange(index, position, position + PAGE - 1, desc=newest_first)
            if not page:
                return
            yield [word.decode() for word in page]
            position += len(page)


def batches(items: Iterator[_T]) -> Iterator[list[_T]]:
    while batch := list(islice(items, PAGE)):
        yield batch


def as_text(row: Mapping[bytes, bytes]) -> dict[str, str]:
    return {key.decode(): value.decode("utf-8", "replace") for key, value in row.items()}


def seconds(text: str | None) -> float | None:
    return int(text) / 1000 if text else None
