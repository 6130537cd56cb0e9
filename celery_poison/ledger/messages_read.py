"""Reading messages, which changes nothing: starts, what is parked, the records of those with a history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, make_dataclass
from typing import Any

from celery_poison.basics.text import when
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.rows import PAGE, Index, Reader, Row, as_text, batches
from celery_poison.model import (
    READERS,
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
#: A record where every field is empty.
_NOTHING = MessageRecord(id="", mid="", task="", queue="", state="")

#: What is published of a message again.
_ORIGINAL_FIELDS = (
    *("body", "content_type", "content_encoding", "headers", "properties", "failure", "sent_at"),
    "destination",
)
#: Candidates that are read before more than these are asked for.
_FIRST_FLAGGED = 20_000
_BEHIND = "parked until its earlier start ends, or its task is resumed"
_FOR_TRIAL = "parked on its way to its trial"


class Messages(Reader):
    """Reads starts and ends, what is parked, and the records of messages."""

    # --- starts and ends ---------------------------------------------------------------------------

    def running(self) -> Iterator[tuple[str, Start, bytes]]:
        """Yield (mid, start, raw start) of everything that is claimed, admitted or running."""
        with clear_errors("reading the running messages"):
            for mid, raw in self._client.hscan_iter(self._keys.running, count=PAGE):
                yield mid.decode(), Start.decode(raw), raw

    def entry(self, mid: str) -> bytes | None:
        """Return the raw start on record of one message."""
        return next(self._fields(self._keys.running, [mid]))[1]

    def starts(self, mids: Iterable[str]) -> Iterator[Start | None]:
        """Yield the start on record of each of these messages, many in one exchange with Redis."""
        return (Start.decode(raw) if raw else None for _, raw in self._fields(self._keys.running, mids))

    def under_way(self, mids: Iterable[str]) -> set[str]:
        """Return those of ``mids`` whose newest start is being received, or runs, and has not finished."""
        starts = [(mid, Start.decode(raw)) for mid, raw in self._fields(self._keys.running, mids) if raw]
        ends = zip(starts, self.ends(start.token for _, start in starts), strict=True)
        return {mid for (mid, start), end in ends if start.phase != Phase.CLAIMED and end is not Ended.DONE}

    def ends(self, tokens: Iterable[str]) -> Iterator[Ended]:
        """Yield how each start ended, in the order of their tokens, many in one exchange with Redis."""
        return (Ended(raw.decode()) if raw else Ended.NOT for _, raw in self._fields(self._keys.done, tokens))

    def ended_tokens(self) -> Iterator[str]:
        """Yield the tokens of all starts whose end is on record."""
        with clear_errors("reading the ends"):
            for token, _ in self._client.hscan_iter(self._keys.done, count=PAGE):
                yield token.decode()

    def child_lives(self, start: Start) -> bool:
        """Whether the pool process that runs ``start`` holds a lease of its own."""
        with clear_errors("reading a lease"):
            return bool(self._client.exists(self._keys.child(start.worker, start.pid)))

    # --- what is parked, and remembered of earlier parkings ----------------------------------------

    def parked(self) -> Iterator[tuple[str, Parked, bytes]]:
        """Yield (mid, parking, raw parking) of everything that was parked and is not forgotten yet."""
        with clear_errors("reading the parked messages"):
            for mid, raw in self._client.hscan_iter(self._keys.parked, count=PAGE):
                yield mid.decode(), Parked.decode(raw), raw

    def parked_now(self) -> Iterator[tuple[str, Parked]]:
        """Yield (mid, parking) of everything that waits for an earlier start: it alone has a parcel."""
        with clear_errors("reading the parked messages"):
            mids: Any = self._client.hkeys(self._keys.parcels)
        for mid, raw in self._fields(self._keys.parked, map(bytes.decode, mids)):
            if raw and (parked := Parked.decode(raw)).state is ParkingState.WAITING:
                yield mid, parked

    def awaited_by(self, mids: Iterable[str]) -> dict[str, str]:
        """Return for whose idempotency keys parked messages wait, by mid: those that wait for one."""
        rows = self._fields(self._keys.awaited, mids)
        return {mid: effect.decode() for mid, effect in rows if effect}

    def waiting(self) -> Iterator[MessageRecord]:
        """Yield what is parked until an earlier start ends (TBDL)."""
        for mid, parked in self.parked_now():
            why = _FOR_TRIAL if parked.start.alone else _BEHIND
            fields = {"last_seen": str(parked.number), "reason": why}
            yield MessageRecord.from_hash({**described(mid, parked.start, {}), **fields}, State.TBDL)

    def parcel(self, mid: str) -> bytes | None:
        """Return the packed original of a message that is parked."""
        return next(self._fields(self._keys.parcels, [mid]))[1]

    # --- the records of messages -------------------------------------------------------------------

    def kept(self, state: State, since: float = 0.0, until: float | None = None) -> Iterator[MessageRecord]:
        """Yield the records of messages in quarantine (NDLV) or given up (FAIL), newest first.

        Args:
            since, until: seconds between which they came there; None: now.
        """
        mids = (mid for mid, _ in self.index(state, since, until))
        # One may have been let go since.
        return (record for record in self.records(mids) if record and record.state == state)

    def index(
        self, state: State, since: float = 0.0, until: float | None = None
    ) -> Iterator[tuple[str, float]]:
        """Yield (mid, since when, in ms) of what is in quarantine or given up, as :meth:`kept` does."""
        for page in self.pages(state, since, until):
            yield from page

    def pages(
        self,
        state: State,
        since: float = 0.0,
        until: float | None = None,
        oldest_first: bool = False,
    ) -> Iterator[Index]:
        """Yield the same in pages; none is empty."""
        return self._index(self._index_of(state), since, until, oldest_first=oldest_first)

    def kept_ids(self, state: State) -> Iterator[tuple[str, str]]:
        """Yield (mid, task id) of what is in quarantine (NDLV) or given up, newest first."""
        for mid, (id,) in self._rows((mid for mid, _ in self.index(state)), ("id",)):
            if id:
                yield mid, id

    def records(self, mids: Iterable[str]) -> Iterator[MessageRecord | None]:
        """Yield the record of each of these messages, None where nothing is kept of it any more."""
        for _, row in self._rows(mids, _RECORD_FIELDS):
            raw = _named(row)
            yield MessageRecord.from_hash(raw, State(raw["state"])) if raw else None

    def parts(self, mids: Iterable[str], names: Iterable[str]) -> Iterator[Any]:
        """Yield mid, state and other fields of each of these messages, as attributes.

        For looking through many: it takes a fifth of the time of whole records.
        """
        wanted = ("state", *sorted({*names} - {"mid", "state"}))
        columns = [(READERS.get(name, str), getattr(_NOTHING, name)) for name in wanted]
        part: Any = make_dataclass("part", ("mid", *wanted), slots=True)
        for mid, row in self._rows(mids, wanted):
            values = zip(columns, row, strict=True)
            yield part(mid, *[read(text) if text else default for (read, default), text in values])

    def outgoing(self, limit: int) -> list[str]:
        """Return the mids of what leaves quarantine by itself and is due, the longest due first."""
        with clear_errors("reading what leaves quarantine"):
            pipe = self._client.pipeline(transaction=False)
            pipe.zrange(self._keys.outgoing, 0, limit - 1, withscores=True)
            pipe.time()
            rows, (now, micros) = pipe.execute()
        now_ms = now * 1000 + micros // 1000
        return [mid.decode() for mid, due in rows if due <= now_ms]

    def moves(self) -> tuple[bool, bool]:
        """Return whether anything is parked, and whether anything leaves quarantine by itself and is due."""
        with clear_errors("reading what is parked and what leaves quarantine"):
            pipe = self._client.pipeline(transaction=False)
            pipe.hlen(self._keys.parcels)
            pipe.zrange(self._keys.outgoing, 0, 0, withscores=True)
            pipe.time()
            parked, first, (now, micros) = pipe.execute()
        return parked > 0, any(due <= now * 1000 + micros // 1000 for _, due in first)

    def record(self, mid: str) -> MessageRecord | None:
        """Return the record of a message that is kept, by its mid, without its body."""
        return next(self.records([mid]))

    def oldest(self) -> MessageRecord | None:
        """Return the record of what has been in quarantine for longest."""
        mids = self.longest_kept(1)
        return self.record(mids[0]) if mids else None

    def longest_kept(self, limit: int) -> list[str]:
        """Return the mids of what has been in quarantine for longest."""
        with clear_errors("reading an index"):
            mids: Any = self._client.zrange(self._keys.quarantine, 0, limit - 1)
        return [mid.decode() for mid in mids]

    def message(self, mid: str) -> dict[str, bytes]:
        """Return the whole ``message`` hash of one mid, the original message included; {} if unknown."""
        with clear_errors("reading a message"):
            raw: Any = self._client.hgetall(self._keys.message(mid))
        return {k.decode(): v for k, v in raw.items()}

    def originals(self, mids: Iterable[str]) -> list[dict[str, bytes]]:
        """Return what is published again of each of these messages, in one round trip; {} of an unknown one.

        For few at a time: bodies may be large.
        """
        words: list[str | int] = [self._keys.message(""), len(_ORIGINAL_FIELDS), *_ORIGINAL_FIELDS, *mids]
        with clear_errors("reading messages"):
            reply: Any = self._script("originals")([self._keys.quarantine], words)
        # What is not Unicode survives as half a surrogate pair.
        rows = json.loads(reply[1].decode("utf-8", "surrogateescape"))
        return [_original(row, body) for row, body in zip(rows, reply[2:], strict=True)]

    def candidate_ids(self) -> set[str]:
        """Return the task ids of the messages flagged as candidates."""
        with clear_errors("reading candidates"):
            ids: Any = self._client.zrange(self._keys.candidates, 0, -1)
        return {id.decode("utf-8", "replace") for id in ids}

    def candidates(self) -> Iterator[MessageRecord]:
        """Yield the messages flagged as candidates that wait or run, oldest flag first (SAP-5)."""
        for ids in batches(self._flagged()):
            lineages = [row for row in self._lineages(ids) if row]
            places = self._places([lineage["mid"] for lineage in lineages])
            for lineage, (state, place) in zip(lineages, places, strict=True):
                yield MessageRecord.from_hash({**lineage, "reason": place}, state)

    def observed(self) -> list[MessageRecord]:
        """Return what was convicted and goes on (``poison_observe_only``): most deaths first, at most 100."""
        with clear_errors("reading candidates"):
            ids: Any = self._client.zrange(self._keys.candidates, 0, _FIRST_FLAGGED - 1)
        lineages = self._lineages(id.decode("utf-8", "replace") for id in ids)
        found = [MessageRecord.from_hash(row, State.TBDL) for row in lineages if row.get("observed")]
        return sorted(found, key=lambda record: -record.crashes)

    def suspected(self, ids: Sequence[str]) -> list[MessageRecord]:
        """Return what is known of the last death of each task id, if anything is."""
        return [MessageRecord.from_hash(row, State.TBDL) for row in self._lineages(ids)]

    def _lineages(self, ids: Iterable[str]) -> list[dict[str, str]]:
        with clear_errors("reading candidates"):
            pipe = self._client.pipeline(transaction=False)
            for id in ids:
                pipe.hgetall(self._keys.lineage(id))
            return [as_text(row) for row in pipe.execute()]

    def _places(self, mids: list[str]) -> Iterator[tuple[State, str]]:
        """Yield the state of each candidate, and where it is at this moment."""
        parked = dict(self._fields(self._keys.parked, mids))
        for mid, start in zip(mids, self.starts(mids), strict=True):
            state = State.DLNG if start is not None and start.phase == Phase.RUNNING else State.TBDL
            parking = Parked.decode(raw) if (raw := parked[mid]) else None
            if start is not None and state is State.DLNG:
                how = "on trial" if start.alone else "running"
                yield state, f"{how} on {start.worker} since {when(start.at_ms / 1000)}"
            elif start is not None:
                yield state, f"waits on {start.worker}"
            elif parking is not None and parking.state is ParkingState.WAITING:
                why = _FOR_TRIAL if parking.start.alone else _BEHIND
                yield state, f"{why}, since {when(parking.number / 1000)}"
            else:
                yield state, "waits in its queue"

    def suspects(self) -> dict[str, Any]:
        """Return how many candidates are on trial, and since when the oldest is one."""
        with clear_errors("reading candidates"):
            oldest: Any = self._client.zrange(self._keys.candidates, 0, 0, withscores=True)
        on_trial = (
            sum(s.alone > 0 and s.phase == Phase.RUNNING for _, s, _ in self.running()) if oldest else 0
        )
        return {"on_trial": on_trial, "suspected_since": oldest[0][1] / 1000 if oldest else None}

    def _flagged(self) -> Iterator[str]:
        """Yield the task ids of all candidates; there may be a million, and who asks wants a few."""
        seen = set[bytes]()
        for last in (_FIRST_FLAGGED - 1, -1):
            with clear_errors("reading candidates"):
                ids: Any = self._client.zrange(self._keys.candidates, 0, last)
            yield from (id.decode("utf-8", "replace") for id in ids if id not in seen)
            if len(ids) < _FIRST_FLAGGED:
                return
            seen.update(ids)

    def live(self) -> Iterator[MessageRecord]:
        """Yield what runs at this moment (DLNG), with its history where it has one."""
        for page in batches(self.running()):
            with clear_errors("reading running messages"):
                pipe = self._client.pipeline(transaction=False)
                for _, start, _ in page:
                    pipe.hget(self._keys.done, start.token)
                    pipe.hgetall(self._keys.lineage(start.id))
                replies = pipe.execute()
            for (mid, start, _), ended, row in zip(page, replies[::2], replies[1::2], strict=True):
                if start.phase == Phase.RUNNING and not ended:
                    yield MessageRecord.from_hash(described(mid, start, as_text(row)), State.DLNG)

    def lineage(self, id: str) -> MessageRecord | None:
        """Return the record of a message with a history that is not in quarantine."""
        with clear_errors("reading a lineage"):
            raw: Any = self._client.hgetall(self._keys.lineage(id))
            if not raw:
                return None
            fields = as_text(raw)
            return MessageRecord.from_hash(fields, self._live_states([fields["mid"]])[0])

    def history(self, id: str) -> History:
        """Return what counts for or against a task id."""
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
        return {worker.decode() for worker in found if worker}

    def _live_states(self, mids: list[str]) -> list[State]:
        running = (start is not None and start.phase == Phase.RUNNING for start in self.starts(mids))
        return [State.DLNG if runs else State.TBDL for runs in running]

    def _fields(self, key: str, names: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield each name with what a hash has under it, many in one exchange with Redis."""
        for page in batches(iter(names)):
            with clear_errors("reading starts or what is parked"):
                raws: Any = self._client.hmget(key, page)
            yield from zip(page, raws, strict=True)


def described(mid: str, start: Start, lineage: dict[str, str]) -> dict[str, str]:
    """Describe a running start; its lineage, if it has one, knows the counts."""
    fields = {"id": start.id, "mid": mid, "task": start.task, "queue": start.queue, "worker": start.worker}
    numbers = {"deliveries": start.deliveries, "payload_bytes": start.payload_bytes, "last_seen": start.at_ms}
    return {**lineage, **fields, **{name: str(number) for name, number in numbers.items()}}


def _named(row: Row) -> dict[str, str]:
    raw = {name: value for name, value in zip(_RECORD_FIELDS, row, strict=True) if value is not False}
    return raw if raw.get("state") else {}


def _original(row: Row, body: bytes | None) -> dict[str, bytes]:
    words = zip(_ORIGINAL_FIELDS, row, strict=True)
    raw = {name: word.encode("utf-8", "surrogateescape") for name, word in words if word is not False}
    return raw if body is None else {**raw, "body": body}
