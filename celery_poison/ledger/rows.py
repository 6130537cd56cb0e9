"""How the ledger is read: some fields of many messages at once.

Ten thousand replies cost this process far more than they cost Redis. So a script puts the fields of a page of
messages into one text, which Python's reader of JSON takes apart in C. It only reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import islice
from typing import Any, Literal, Protocol, TypeVar

import redis

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.keys import Keys
from celery_poison.states import State

_T = TypeVar("_T")

#: Values of one message, False where a field is not there.
Row = Sequence[str | Literal[False]]
#: (mid, ms) of a page of messages.
Index = list[tuple[str, float]]

#: Entries that are read in one exchange with Redis: of messages at most, at first; of an index, and at first.
PAGE, _FIRST, INDEX_PAGE, _INDEX_FIRST = 500, 64, 10_000, 256


class Readable(Protocol):
    """What is read: a :class:`~celery_poison.ledger.Ledger`."""

    client: redis.Redis
    keys: Keys


class Reader:
    """Reads one ledger; every method raises ``LedgerUnavailable`` when Redis is away."""

    def __init__(self, ledger: Readable) -> None:
        self._client = ledger.client
        self._keys = ledger.keys
        self._scripts: dict[str, Any] = {}

    def _script(self, name: str) -> Any:
        """Return a script that changes nothing, to be called with keys and arguments."""
        if name not in self._scripts:
            self._scripts[name] = self._client.register_script(_text(name))
        return self._scripts[name]

    def now_ms(self) -> int:
        """Return Redis' clock, the only one that the plugin believes."""
        with clear_errors("reading the clock"):
            answer: Any = self._client.time()
            seconds, micros = answer
        return int(seconds) * 1000 + int(micros) // 1000

    def _index_of(self, state: State) -> str:
        return self._keys.quarantine if state is State.NDLV else self._keys.failed

    def _rows(self, mids: Iterable[str], fields: Sequence[str]) -> Iterator[tuple[str, Row]]:
        """Yield each mid with these fields of its message."""
        prefix = self._keys.message("")
        short = isinstance(mids, list) and len(mids) <= PAGE  # wanted as a whole
        for page in [mids] if short else batches(iter(mids)):
            with clear_errors("reading messages"):
                words: list[str | int] = [prefix, len(fields), *fields, *page]
                reply: Any = self._script("rows")([self._keys.quarantine], words)
            yield from zip(page, json.loads(reply[1].decode("utf-8", "replace")), strict=True)

    def _index(
        self,
        key: str,
        since: float = 0.0,
        until: float | None = None,
        size: int = _INDEX_FIRST,
        oldest_first: bool = False,
    ) -> Iterator[Index]:
        """Yield a sorted set of mids in pages, highest score (ms) first; none is empty, the first is small.

        What is added or removed meanwhile moves nothing: a page begins where the last one ended.
        """
        newest, oldest = "+inf" if until is None else round(until * 1000), round(since * 1000)
        first, last = (oldest, newest) if oldest_first else (newest, oldest)
        order, skip = "oldest" if oldest_first else "newest", 0
        while True:
            with clear_errors("reading an index"):
                reply: Any = self._script("index")([key], [first, last, order, skip, size])
            flat = json.loads(reply[1].decode("utf-8", "replace"))
            if not flat:
                return
            scores = flat[1::2]
            yield [(mid, float(score)) for mid, score in zip(flat[::2], scores, strict=True)]
            if scores[0] == scores[-1]:  # some that were skipped may have the same
                skip += len(scores)
            else:
                first, skip = scores[-1], scores.count(scores[-1])
            if len(scores) < size:
                return
            size = min(4 * size, INDEX_PAGE)

    def _pages(self, index: str, newest_first: bool) -> Iterator[list[str]]:
        position = 0
        while True:
            with clear_errors("reading an index"):
                page: Any = self._client.zrange(index, position, position + PAGE - 1, desc=newest_first)
            if not page:
                return
            yield [word.decode() for word in page]
            position += len(page)


def _text(name: str) -> str:
    return resources.files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def batches(items: Iterator[_T]) -> Iterator[list[_T]]:
    """Yield a few at first, since who wants one page reads no more than that, and then more at a time."""
    size = _FIRST
    while batch := list(islice(items, size)):
        yield batch
        size = min(2 * size, PAGE)


def as_text(row: Mapping[bytes, bytes]) -> dict[str, str]:
    return {key.decode(): value.decode("utf-8", "replace") for key, value in row.items()}


def seconds(text: str | None) -> float | None:
    return int(text) / 1000 if text else None
