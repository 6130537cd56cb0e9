"""Reading messages, which changes nothing: starts, what is parked, the records of those with a history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from celery_poison.basics.numbers import is_whole
from celery_poison.basics.text import decoded
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.rows import PAGE, Reader, Row, as_text, batches
from celery_poison.model import (
    Ended,
    History,
    MessageRecord,
    Parked,
    ParkingState,
    Phase,
    Start,
    history_of,
)
from celery_poison.states import State

#: Everything of a ``message`` hash but the original message itself.
_RECORD_FIELDS = tuple(field.name for field in fields(MessageRecord))


#: What is in another state is of no version that is known: it is no message.
ENDS = {ended.value.encode(): ended for ended in Ended}
STATES = {state.value: state for state in State}


class Messages(Reader):
    """Reads starts and ends, what is parked, and the records of messages."""

    # --- starts and ends ---------------------------------------------------------------------------

    def running(self) -> Iterator[tuple[str, Start, bytes]]:
        """Yield (mid, start, raw start) of everything that is claimed, admitted or running."""
        with clear_errors("reading the running messages"):
            for mid, raw in self._client.hscan_iter(self._keys.running, count=PAGE):
                with suppress(ValueError):  # what somebody else has put there runs nowhere
                    yield decoded(mid), Start.decode(raw), raw

    def entry(self, mid: str) -> bytes | None:
        """Return the raw start on record of one message."""
        return next(self._fields(self._keys.running, [mid]))[1]

    def starts(self, mids: Iterable[str]) -> Iterator[Start | None]:
        """Yield the start on record of each of these messages, many in one exchange with Redis."""
        return (start_of(raw) for _, raw in self._fields(self._keys.running, mids))

    def under_way(self, mids: Iterable[str]) -> set[str]:
        """Return, of these mids, each whose newest start is being received or runs, and has not finished."""
        rows = self._fields(self._keys.running, mids)
        starts = [(mid, start) for mid, raw in rows if (start := start_of(raw))]
        ends = zip(starts, self.ends(start.token for _, start in starts), strict=True)
        return {mid for (mid, start), end in ends if start.phase != Phase.CLAIMED and end is not Ended.DONE}

    def ends(self, tokens: Iterable[str]) -> Iterator[Ended]:
        """Yield how each start ended, in the order of their tokens, many in one exchange with Redis."""
        return (ENDS.get(raw or b"", Ended.NOT) for _, raw in self._fields(self._keys.done, tokens))

    def ended_tokens(self) -> Iterator[str]:
        """Yield the tokens of all starts whose end is on record."""
        with clear_errors("reading the ends"):
            for token, _ in self._client.hscan_iter(self._keys.done, count=PAGE):
                yield decoded(token)

    def child_lives(self, start: Start) -> bool:
        """Whether the pool process that runs ``start`` holds a lease of its own."""
        with clear_errors("reading a lease"):
            return bool(self._client.exists(self._keys.child(start.worker, start.pid)))

    # --- what is parked, and remembered of earlier parkings ----------------------------------------

    def parked(self) -> Iterator[tuple[str, Parked, bytes]]:
        """Yield (mid, parking, raw parking) of everything that was parked and is not forgotten yet."""
        with clear_errors("reading the parked messages"):
            for mid, raw in self._client.hscan_iter(self._keys.parked, count=PAGE):
                with suppress(ValueError):
                    yield decoded(mid), Parked.decode(raw), raw

    def parked_now(self) -> Iterator[tuple[str, Parked]]:
        """Yield (mid, parking) of everything that waits for an earlier start: it alone has a parcel."""
        with clear_errors("reading the parked messages"):
            mids: Any = self._client.hkeys(self._keys.parcels)
        for mid, raw in self._fields(self._keys.parked, (decoded(mid) for mid in mids)):
            parked = parking_of(raw)
            if parked is not None and parked.state is ParkingState.WAITING:
                yield mid, parked

    def awaited_by(self, mids: Iterable[str]) -> tuple[dict[str, str], dict[str, int]]:
        """Return what parked messages wait for, by mid: idempotency keys, and times in ms of Redis' clock."""
        found = {mid: decoded(what) for mid, what in self._fields(self._keys.awaited, mids) if what}
        times = {mid: int(what) for mid, what in found.items() if is_whole(what)}
        return {mid: what for mid, what in found.items() if mid not in times}, times

    def parcel(self, mid: str) -> bytes | None:
        """Return the packed original of a message that is parked."""
        return next(self._fields(self._keys.parcels, [mid]))[1]

    # --- the records of messages -------------------------------------------------------------------

    def records(self, mids: Iterable[str]) -> Iterator[MessageRecord | None]:
        """Yield the record of each of these messages, None where nothing is kept of it any more."""
        for _, row in self._rows(mids, _RECORD_FIELDS):
            raw = _named(row)
            state = STATES.get(raw.get("state", ""))
            yield MessageRecord.from_hash(raw, state) if state else None

    def record(self, mid: str) -> MessageRecord | None:
        """Return the record of a message that is kept, by its mid, without its body."""
        return next(self.records([mid]))

    def message(self, mid: str) -> dict[str, bytes]:
        """Return the whole ``message`` hash of one mid, the original message included; {} if unknown."""
        with clear_errors("reading a message"):
            raw: Any = self._client.hgetall(self._keys.message(mid))
        return {decoded(k): v for k, v in raw.items()}

    def candidate_ids(self) -> set[str]:
        """Return the task ids of the messages flagged as candidates."""
        with clear_errors("reading candidates"):
            ids: Any = self._client.zrange(self._keys.candidates, 0, -1)
        return {decoded(id) for id in ids}

    def suspected(self, ids: Sequence[str]) -> list[MessageRecord]:
        """Return the record of the last death of each task id, if there is one."""
        return [MessageRecord.from_hash(row, State.TBDL) for row in self._lineages(ids)]

    def _lineages(self, ids: Iterable[str]) -> list[dict[str, str]]:
        with clear_errors("reading candidates"):
            pipe = self._client.pipeline(transaction=False)
            for id in ids:
                pipe.hgetall(self._keys.lineage(id))
            return [as_text(row) for row in pipe.execute()]

    def history(self, id: str) -> History:
        """Return the counts for and against a task id."""
        with clear_errors("reading a lineage"):
            raw: Any = self._client.hgetall(self._keys.lineage(id))
        return history_of(as_text(raw))

    def died_before(self, ids: Iterable[str]) -> set[str]:
        """Return the workers in which messages of these task ids died last."""
        with clear_errors("reading where messages died"):
            pipe = self._client.pipeline(transaction=False)
            for id in ids:
                pipe.hget(self._keys.lineage(id), "worker")
            found: list[Any] = pipe.execute()
        return {decoded(worker) for worker in found if worker}

    def _fields(self, key: str, names: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield each name with what a hash has under it, many in one exchange with Redis."""
        for page in batches(iter(names)):
            with clear_errors("reading starts or what is parked"):
                raws: Any = self._client.hmget(key, page)
            yield from zip(page, raws, strict=True)


def _named(row: Row) -> dict[str, str]:
    raw = {name: value for name, value in zip(_RECORD_FIELDS, row, strict=True) if value is not False}
    return raw if raw.get("state") else {}


def start_of(raw: bytes | None) -> Start | None:
    with suppress(ValueError):
        return Start.decode(raw) if raw else None
    return None


def parking_of(raw: bytes | None) -> Parked | None:
    """Return a parking as it stands in the ledger; None where there is none that can be read."""
    with suppress(ValueError):
        return Parked.decode(raw) if raw else None
    return None
