"""One Redis Stream as a reader of ranges needs it: where it begins and ends, and its entries as bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import redis

from celery_poison.ledger.connection import clear_errors, open_redis
from celery_poison.pipeline.ingest.entries import by_columns, by_words
from celery_poison.pipeline.schema import UNKNOWN

#: Entries asked for at a time: Redis serves nobody else for about 5 ms.
FETCH = 2000
#: After every entry of a millisecond.
LAST_SEQUENCE = 2**64 - 1


def parts(entry: str) -> tuple[int, int]:
    """Return an entry's id as numbers, in which ids are ordered."""
    ms, _, seq = entry.partition("-")
    return int(ms), int(seq or 0)


@dataclass(frozen=True)
class Tip:
    """The end of a stream at one moment.

    Attributes:
        id: of the newest entry ever.
        added: entries ever added, those that are gone included; UNKNOWN before Redis 7.
        length: entries that are there.
        first: id of the oldest that is there; empty where there is none.
    """

    id: str = "0-0"
    added: int = UNKNOWN
    length: int = 0
    first: str = ""


def ranges(after: str, upto: str, first: str, count: int) -> list[tuple[str, str]]:
    """Cut ``(after, upto]`` into ``count`` ranges of equal time or less; none where it is empty.

    Args:
        first: id of the first entry after ``after``: time without entries is worth no task.
    """
    if not first or parts(first) > parts(upto):
        return []
    begin, end = parts(first)[0], parts(upto)[0]
    inner = sorted({begin + (end - begin) * n // count for n in range(1, count)} - {begin, end})
    cuts = [after, *(f"{ms}-{LAST_SEQUENCE}" for ms in inner), upto]
    return [*pairwise(cuts)]


def expected(after: str, tip: Tip) -> int:
    """Return about how many entries come after one, as if they were spread evenly over time."""
    if not tip.first or parts(after) >= parts(tip.id):
        return 0
    begin, end, at = parts(tip.first)[0], parts(tip.id)[0], parts(after)[0]
    if at <= begin or end == begin:
        return tip.length
    return tip.length * (end - at) // (end - begin)


def halfway(first: str, tip: Tip, most: int) -> str:
    """Return an id about ``most`` entries after the first one; empty where the end is nearer."""
    if not first or (count := expected(first, tip)) <= most:
        return ""
    begin, end = parts(first)[0], parts(tip.id)[0]
    ms = begin + max(1, (end - begin) * most // count)
    return f"{ms}-{LAST_SEQUENCE}" if ms < end else ""


class Stream:
    """Reads one stream. Opens its connection at the first use.

    Raises:
        LedgerUnavailable: from every method, when Redis is away or refuses.
    """

    def __init__(self, url: str, key: str, master_name: str = "") -> None:
        self._client: Any = open_redis(url, {"master_name": master_name}, key=key)
        self._key = key

    def tip(self) -> Tip:
        with clear_errors("asking for the end of the journal"):
            try:
                info: Any = self._client.xinfo_stream(self._key)
            except redis.ResponseError as error:
                if "no such key" in str(error):
                    return Tip(added=0)
                raise
        first = info["first-entry"]
        return Tip(
            id=_text(info["last-generated-id"]),
            added=int(info.get("entries-added", UNKNOWN)),
            length=int(info["length"]),
            first=_text(first[0]) if first else "",
        )

    def last_upto(self, entry: str) -> str:
        """Return the id of the newest entry up to and including one; empty where there is none."""
        with clear_errors("looking for an entry of the journal"):
            found = self._client.xrevrange(self._key, entry, "-", count=1)
        return _text(found[0][0]) if found else ""

    def first_after(self, entry: str) -> str:
        """Return the id of the next entry; empty where there is none."""
        with clear_errors("looking for an entry of the journal"):
            found = self._client.xrange(self._key, f"({entry}", "+", count=1)
        return _text(found[0][0]) if found else ""

    def now_ms(self) -> int:
        with clear_errors("asking Redis for the time"):
            seconds, micro = self._client.time()
        return int(seconds) * 1000 + int(micro) // 1000

    def trim(self, keep_from: str) -> int:
        """Drop what is older than an entry, which itself stays; return how many there were."""
        with clear_errors("trimming the journal"):
            return int(self._client.xtrim(self._key, minid=keep_from, approximate=False))

    def chunks(self, after: str, upto: str, fetch: int = FETCH) -> Iterator[pa.RecordBatch]:
        """Yield the entries of ``(after, upto]``, oldest first."""
        pool = self._client.connection_pool
        with clear_errors("reading the journal"):
            connection = pool.get_connection()
        line = _Line(connection)
        try:
            while after:
                with clear_errors("reading the journal"):
                    rows = by_columns(line.ask("XRANGE", self._key, f"({after}", upto, "COUNT", fetch))
                    if rows is None:
                        rows = by_words(self._client.xrange(self._key, f"({after}", upto, count=fetch))
                if rows.num_rows:
                    yield rows
                after = rows["entry"][-1].as_py() if rows.num_rows == fetch else ""
        finally:
            connection.disconnect()  # an answer may be half read
            pool.release(connection)


class _Line:
    """A connection that gives answers as they came: redis-py would make an object of each word.

    What follows an answer shows its end: the echo of a word that nobody can have foreseen.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._buffer = bytearray(1 << 21)

    def ask(self, *command: object) -> memoryview:
        """Return the answer to a command; it is overwritten by the next."""
        sign = os.urandom(16).hex()
        self._connection.send_packed_command(self._connection.pack_commands([command, ("ECHO", sign)]))
        end = b"$%d\r\n%s\r\n" % (len(sign), sign.encode())
        filled, size = 0, len(end)
        while filled < size or not self._buffer.endswith(end, filled - size, filled):
            if filled == len(self._buffer):
                self._buffer = self._buffer + bytes(filled)
            more = self._connection._sock.recv_into(memoryview(self._buffer)[filled:])
            if not more:
                raise redis.ConnectionError("Redis closed the connection")
            filled += more
        return memoryview(self._buffer)[: filled - size]


def _text(word: bytes | str) -> str:
    return word.decode() if isinstance(word, bytes) else word
