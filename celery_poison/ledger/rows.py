"""How the ledger is read: some fields of many messages at once.

Ten thousand replies cost this process far more than they cost Redis. So a script puts the fields of a page of
messages into one text, which Python's reader of JSON takes apart in C. It only reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import islice
from typing import Any, Literal, TypeVar

from celery_poison.basics.numbers import milliseconds
from celery_poison.ledger.connection import Namespace, clear_errors

_T = TypeVar("_T")

#: Values of one message, False where a field is not there.
Row = Sequence[str | Literal[False]]

#: Messages that are read in one exchange with Redis at most, and at first.
PAGE, FIRST = 500, 64


class Reader:
    """Reads one ledger; every method raises ``LedgerUnavailable`` when Redis is away."""

    def __init__(self, ledger: Namespace) -> None:
        self._client = ledger.client
        self._keys = ledger.keys
        self._scripts: dict[str, Any] = {}

    def _script(self, name: str) -> Any:
        """Return a script that changes nothing, to be called with keys and arguments.

        Args:
            name: as of :func:`celery_poison.ledger.scripts.script`.
        """
        if name not in self._scripts:
            self._scripts[name] = self._client.register_script(_text(name))
        return self._scripts[name]

    def now_ms(self) -> int:
        """Return Redis' clock, the only one that the plugin believes."""
        with clear_errors("reading the clock"):
            answer: Any = self._client.time()
            seconds, micros = answer
        return int(seconds) * 1000 + int(micros) // 1000

    def _rows(self, mids: Iterable[str], fields: Sequence[str]) -> Iterator[tuple[str, Row]]:
        """Yield each mid with these fields of its message."""
        prefix = self._keys.message("")
        short = isinstance(mids, list) and len(mids) <= PAGE  # wanted as a whole
        for page in [mids] if short else batches(iter(mids)):
            with clear_errors("reading messages"):
                words: list[str | int] = [prefix, len(fields), *fields, *page]
                reply: Any = self._script("rows")([self._keys.quarantine], words)
            yield from zip(page, json.loads(reply[1].decode("utf-8", "replace")), strict=True)


def _text(name: str) -> str:
    package, _, own = name.rpartition(":")
    return resources.files(package or __package__).joinpath("lua", f"{own}.lua").read_text(encoding="utf-8")


def batches(items: Iterator[_T]) -> Iterator[list[_T]]:
    """Yield a few at first, since who wants one page reads no more than that, and then more at a time."""
    size = FIRST
    while batch := list(islice(items, size)):
        yield batch
        size = min(2 * size, PAGE)


def as_text(row: Mapping[bytes, bytes]) -> dict[str, str]:
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in row.items()}


def strings(raw: bytes | str | None) -> tuple[str, ...]:
    """Return the strings of an array in JSON; none where it cannot be read."""
    try:
        found = json.loads(raw or "[]")
    except (ValueError, RecursionError):
        return ()
    return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list) else ()


def seconds(text: str | None) -> float | None:
    return milliseconds(text)
