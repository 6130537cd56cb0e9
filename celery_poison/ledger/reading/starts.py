"""Starts on record: what is being received or runs, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.reading.reader import PAGE, Reader, batches
from celery_poison.model import Ended, Phase, Start


class Starts(Reader):
    """Reads starts and ends."""

    def running(self) -> Iterator[tuple[str, Start, bytes]]:
        """Yield (mid, start, raw start) of everything that is claimed, admitted or running."""
        with clear_errors("reading the running messages"):
            for mid, raw in self._client.hscan_iter(self._keys.running, count=PAGE):
                yield mid.decode(), Start.decode(raw), raw

    def entry(self, mid: str) -> bytes | None:
        """Return the raw start on record of one message."""
        with clear_errors("reading a start"):
            found: Any = self._client.hget(self._keys.running, mid)
        return found if found is None else bytes(found)

    def starts(self, mids: Iterable[str]) -> Iterator[Start | None]:
        """Yield the start on record of each of these messages, many in one exchange with Redis."""
        for page in batches(iter(mids)):
            with clear_errors("reading starts"):
                raws: Any = self._client.hmget(self._keys.running, page)
            yield from (Start.decode(raw) if raw else None for raw in raws)

    def under_way(self, mids: Iterable[str]) -> set[str]:
        """Return those of ``mids`` whose newest start is being received, or runs, and has not finished."""
        found: set[str] = set()
        for page in batches(iter(mids)):
            with clear_errors("reading running messages"):
                raws: Any = self._client.hmget(self._keys.running, page)
            starts = [(mid, Start.decode(raw)) for mid, raw in zip(page, raws, strict=True) if raw]
            ends = self.ends([start.token for _, start in starts])
            for (mid, start), ended in zip(starts, ends, strict=True):
                if start.phase != Phase.CLAIMED and ended is not Ended.DONE:
                    found.add(mid)
        return found

    def ends(self, tokens: Iterable[str]) -> Iterator[Ended]:
        """Yield how each start ended, in the order of their tokens, many in one exchange with Redis."""
        for page in batches(iter(tokens)):
            with clear_errors("reading ends"):
                raws: Any = self._client.hmget(self._keys.done, page)
            yield from (Ended(raw.decode()) if raw else Ended.NOT for raw in raws)

    def ended_tokens(self) -> Iterator[str]:
        """Yield the tokens of all starts whose end is on record."""
        with clear_errors("reading the ends"):
            for token, _ in self._client.hscan_iter(self._keys.done, count=PAGE):
                yield token.decode()

    def child_lives(self, start: Start) -> bool:
        """Whether the pool process that runs ``start`` holds a lease of its own."""
        with clear_errors("reading a lease"):
            return bool(self._client.exists(self._keys.child(start.worker, start.pid)))


def described(mid: str, start: Start, lineage: dict[str, str]) -> dict[str, str]:
    """Describe a running start; its lineage, if it has one, knows the counts."""
    told = {"id": start.id, "mid": mid, "task": start.task, "queue": start.queue, "worker": start.worker}
    numbers = {"deliveries": start.deliveries, "payload_bytes": start.payload_bytes, "last_seen": start.at_ms}
    return {**lineage, **told, **{name: str(number) for name, number in numbers.items()}}
