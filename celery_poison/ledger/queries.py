"""Reading the ledger: lists, single records, workers and incidents. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from celery_poison.evidence import Evidence
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.history import entry
from celery_poison.ledger.ledger import Ledger
from celery_poison.records import (
    GateRecord,
    Incident,
    MessageRecord,
    Parked,
    ParkingState,
    Start,
    WorkerRecord,
    history_of,
)
from celery_poison.states import State
from celery_poison.verdict import Ended, History, Phase

_T = TypeVar("_T")

_PAGE = 500
_BEHIND = "parked until its earlier start ends"
#: Everything of a ``message`` hash but the original message itself.
_RECORD_FIELDS = (
    *("id", "mid", "task", "queue", "state", "candidate", "cause", "deliveries", "crashes", "strikes"),
    *("failures", "fingerprint", "payload_bytes", "worker", "first_seen", "last_seen", "quarantined_at"),
    *("reason", "incident", "releases", "resolution", "actor", "note", "pid", "runtime_ms", "evidence"),
)


class Queries:
    """Typed views of one ledger; every method raises ``LedgerUnavailable`` when Redis is away."""

    def __init__(self, ledger: Ledger) -> None:
        self._client = ledger.client
        self._keys = ledger.keys

    def kept(self, state: State, *, newest_first: bool = True) -> Iterator[MessageRecord]:
        """Yield the records of messages in quarantine (NDLV) or given up (FAIL), page by page."""
        index = self._keys.quarantine if state is State.NDLV else self._keys.failed
        for mids in self._pages(index, newest_first):
            yield from filter(None, self.records(mids))

    def kept_index(self, state: State, limit: int = 0) -> list[tuple[str, float]]:
        """Return (mid, since when, in ms) of what is in quarantine or given up, newest first; 0: all."""
        index = self._keys.quarantine if state is State.NDLV else self._keys.failed
        with clear_errors("reading an index"):
            pairs: Any = self._client.zrange(index, 0, limit - 1, desc=True, withscores=True)
        return [(mid.decode(), score) for mid, score in pairs]

    def records(self, mids: Iterable[str]) -> Iterator[MessageRecord | None]:
        """Yield the record of each of these messages, None where nothing is kept of it any more."""
        for page in _batches(iter(mids)):
            with clear_errors("reading messages"):
                pipe = self._client.pipeline(transaction=False)
                for mid in page:
                    pipe.hmget(self._keys.message(mid), _RECORD_FIELDS)
                rows = pipe.execute()
            for raw in map(_named, rows):
                yield MessageRecord.from_hash(raw, State(raw["state"])) if raw else None

    def kept_ids(self, state: State) -> Iterator[tuple[str, str]]:
        """Yield (mid, task id) of what is in quarantine (NDLV) or given up, newest first; 0: all."""
        index = self._keys.quarantine if state is State.NDLV else self._keys.failed
        for mids in self._pages(index, newest_first=True):
            with clear_errors("reading task ids"):
                pipe = self._client.pipeline(transaction=False)
                for mid in mids:
                    pipe.hget(self._keys.message(mid), "id")
                ids: list[Any] = pipe.execute()
            yield from ((mid, id.decode("utf-8", "replace")) for mid, id in zip(mids, ids, strict=True) if id)

    def candidates(self) -> Iterator[MessageRecord]:
        """Yield the messages flagged as candidates that wait or run, oldest flag first (SAP-5)."""
        for ids in self._pages(self._keys.candidates, newest_first=False):
            with clear_errors("reading candidates"):
                pipe = self._client.pipeline(transaction=False)
                for id in ids:
                    pipe.hgetall(self._keys.lineage(id))
                lineages = [_text(row) for row in pipe.execute() if row]
                states = self._live_states([lineage["mid"] for lineage in lineages])
            for lineage, state in zip(lineages, states, strict=True):
                yield MessageRecord.from_hash(lineage, state)

    def live(self) -> Iterator[MessageRecord]:
        """Yield what runs at this moment (DLNG), with its history where it has one."""
        for page in _batches(self.running()):
            with clear_errors("reading running messages"):
                pipe = self._client.pipeline(transaction=False)
                for _, start, _ in page:
                    pipe.hget(self._keys.done, start.token)
                    pipe.hgetall(self._keys.lineage(start.id))
                replies = pipe.execute()
            for (mid, start, _), ended, row in zip(page, replies[::2], replies[1::2], strict=True):
                if start.phase == Phase.RUNNING and not ended:
                    yield MessageRecord.from_hash(_running(mid, start, _text(row)), State.DLNG)

    def _live_states(self, mids: list[str]) -> list[State]:
        if not mids:
            return []
        raws: Any = self._client.hmget(self._keys.running, mids)
        return [_state_of_start(raw) for raw in raws]

    def record(self, mid: str) -> MessageRecord | None:
        """Return the record of a message that is kept, by its mid, without its body."""
        with clear_errors("reading a message"):
            row: Any = self._client.hmget(self._keys.message(mid), _RECORD_FIELDS)
        raw = _named(row)
        return MessageRecord.from_hash(raw, State(raw["state"])) if raw else None

    def message(self, mid: str) -> dict[str, bytes]:
        """Return the whole ``message`` hash of one mid, the original message included; {} if unknown."""
        with clear_errors("reading a message"):
            raw: Any = self._client.hgetall(self._keys.message(mid))
        return {k.decode(): v for k, v in raw.items()}

    def lineage(self, id: str) -> MessageRecord | None:
        """Return the record of a message with a history that is not in quarantine."""
        with clear_errors("reading a lineage"):
            raw: Any = self._client.hgetall(self._keys.lineage(id))
            if not raw:
                return None
            text = _text(raw)
            return MessageRecord.from_hash(text, self._live_states([text["mid"]])[0])

    def history(self, id: str) -> History:
        """Return what counts for or against a task id."""
        with clear_errors("reading a lineage"):
            raw: Any = self._client.hgetall(self._keys.lineage(id))
        return history_of(_text(raw))

    def meta(self) -> dict[str, str]:
        """Return schema, app and broker of the ledger; {} before the first worker signed it."""
        with clear_errors("reading whose ledger this is"):
            row: Any = self._client.hmget(self._keys.meta, ("schema", "app", "broker"))
        found = zip(("schema", "app", "broker"), row, strict=True)
        return {name: value.decode() for name, value in found if value is not None}

    def running(self) -> Iterator[tuple[str, Start, bytes]]:
        """Yield (mid, start, raw start) of everything that is claimed, admitted or running."""
        with clear_errors("reading the running messages"):
            for mid, raw in self._client.hscan_iter(self._keys.running, count=_PAGE):
                yield mid.decode(), Start.decode(raw), raw

    def entry(self, mid: str) -> bytes | None:
        """Return the raw start on record of one message."""
        with clear_errors("reading a start"):
            found: Any = self._client.hget(self._keys.running, mid)
        return found if found is None else bytes(found)

    def parked(self) -> Iterator[tuple[str, Parked, bytes]]:
        """Yield (mid, parking, raw parking) of everything that was parked and is not forgotten yet."""
        with clear_errors("reading the parked messages"):
            for mid, raw in self._client.hscan_iter(self._keys.parked, count=_PAGE):
                yield mid.decode(), Parked.decode(raw), raw

    def parked_now(self) -> Iterator[tuple[str, Parked]]:
        """Yield (mid, parking) of everything that waits for an earlier start: it alone has a parcel."""
        with clear_errors("reading the parked messages"):
            mids: Any = self._client.hkeys(self._keys.parcels)
        for page in _batches(iter(mids)):
            with clear_errors("reading the parked messages"):
                raws: Any = self._client.hmget(self._keys.parked, page)
            for mid, raw in zip(page, raws, strict=True):
                if raw and (parked := Parked.decode(raw)).state is ParkingState.WAITING:
                    yield mid.decode(), parked

    def under_way(self, mids: Iterable[str]) -> set[str]:
        """Return those of ``mids`` whose newest start is being received, or runs, and has not finished."""
        found: set[str] = set()
        for page in _batches(iter(mids)):
            with clear_errors("reading running messages"):
                raws: Any = self._client.hmget(self._keys.running, page)
            starts = [(mid, Start.decode(raw)) for mid, raw in zip(page, raws, strict=True) if raw]
            ends = self.ends([start.token for _, start in starts])
            for (mid, start), ended in zip(starts, ends, strict=True):
                if start.phase != Phase.CLAIMED and ended is not Ended.DONE:
                    found.add(mid)
        return found

    def waiting(self) -> Iterator[MessageRecord]:
        """Yield what is parked until an earlier start ends (TBDL)."""
        for mid, parked in self.parked_now():
            why = "parked on its way to its trial" if parked.start.alone else _BEHIND
            told = {"last_seen": str(parked.number), "reason": why}
            yield MessageRecord.from_hash({**_running(mid, parked.start, {}), **told}, State.TBDL)

    def parcel(self, mid: str) -> bytes | None:
        """Return the packed original of a message that is parked."""
        with clear_errors("reading a parked message"):
            found: Any = self._client.hget(self._keys.parcels, mid)
        return found if found is None else bytes(found)

    def ends(self, tokens: Iterable[str]) -> Iterator[Ended]:
        """Yield how each start ended, in the order of their tokens, many in one exchange with Redis."""
        for page in _batches(iter(tokens)):
            with clear_errors("reading ends"):
                raws: Any = self._client.hmget(self._keys.done, page)
            yield from (Ended(raw.decode()) if raw else Ended.NOT for raw in raws)

    def ended_tokens(self) -> Iterator[str]:
        """Yield the tokens of all starts whose end is on record."""
        with clear_errors("reading the ends"):
            for token, _ in self._client.hscan_iter(self._keys.done, count=_PAGE):
                yield token.decode()

    def child_lives(self, start: Start) -> bool:
        """Whether the pool process that runs ``start`` holds a lease of its own."""
        with clear_errors("reading a lease"):
            return bool(self._client.exists(self._keys.child(start.worker, start.pid)))

    def workers(self, activation_ms: int) -> list[WorkerRecord]:
        """Return every worker that holds a lease, the longest silent first."""
        now = self.now_ms()
        with clear_errors("reading workers"):
            leases: Any = self._client.zrange(self._keys.leases, 0, -1, withscores=True)
            pipe = self._client.pipeline(transaction=False)
            for worker, _ in leases:
                pipe.hgetall(self._keys.worker(worker.decode()))
            pipe.hgetall(self._keys.presence)
            *rows, presence = pipe.execute()
        found = []
        for (name, beat), row in zip(leases, rows, strict=True):
            worker = _worker(name.decode(), beat, now - beat < activation_ms, row)
            found.append(replace(worker, noticed_by="connection") if presence.get(name) else worker)
        return found

    def leases(self) -> dict[str, int]:
        """Return the last heartbeat of every worker, in ms of Redis' clock."""
        with clear_errors("reading leases"):
            raw: Any = self._client.zrange(self._keys.leases, 0, -1, withscores=True)
        return {worker.decode(): int(beat) for worker, beat in raw}

    def open_incidents(self) -> dict[str, str]:
        """Return dead workers whose messages are still being put back, with their incident."""
        with clear_errors("reading open incidents"):
            raw: Any = self._client.hgetall(self._keys.open)
        return {worker.decode(): incident.decode() for worker, incident in raw.items()}

    def gate(self) -> GateRecord:
        """Return how the fleet gate stands."""
        with clear_errors("reading the fleet gate"):
            raw: Any = self._client.hgetall(self._keys.gate)
        told, now = _text(raw), self.now_ms() / 1000 if raw else 0.0
        until = _seconds(told.get("until"))
        return GateRecord(
            closed=until is not None and until > now,
            closed_at=_seconds(told.get("closed_at")),
            until=until,
            deaths=int(told.get("deaths") or 0),
            fleet=int(told.get("fleet") or 0),
            lifted_at=_seconds(told.get("lifted_at")),
            lifted_by=told.get("lifted_by", ""),
        )

    def died_before(self, ids: Iterable[str]) -> set[str]:
        """Return the workers in which messages of these task ids died last."""
        with clear_errors("reading where messages died"):
            pipe = self._client.pipeline(transaction=False)
            for id in ids:
                pipe.hget(self._keys.lineage(id), "worker")
            found: list[Any] = pipe.execute()
        return {worker.decode() for worker in found if worker}

    def incident(self, incident: str) -> Incident | None:
        with clear_errors("reading an incident"):
            raw: Any = self._client.hgetall(self._keys.incident(incident))
        return _incident(_text(raw)) if raw else None

    def incidents(self, limit: int = 100) -> list[Incident]:
        """Return the newest incidents first."""
        with clear_errors("reading incidents"):
            ids: Any = self._client.zrevrange(self._keys.incidents, 0, limit - 1)
        found = (self.incident(id.decode()) for id in ids)
        return [incident for incident in found if incident]

    def totals(self) -> dict[str, int]:
        """Return how many messages are in quarantine, failed, candidates, running and parked."""
        with clear_errors("counting"):
            pipe = self._client.pipeline(transaction=False)
            pipe.zcard(self._keys.quarantine)
            pipe.zcard(self._keys.failed)
            pipe.zcard(self._keys.candidates)
            pipe.hlen(self._keys.running)
            pipe.hlen(self._keys.done)
            pipe.xlen(self._keys.journal)
            pipe.hlen(self._keys.parcels)
            counts = pipe.execute()
        names = ("quarantined", "failed", "candidates", "running", "ended", "journal", "parked")
        found = dict(zip(names, counts, strict=True))
        found["running"] = max(
            0, found["running"] - found.pop("ended")
        )  # acknowledged a moment ago, and not forgotten yet
        return found

    def would_quarantine(self) -> dict[str, int]:
        """Return how many messages would have been quarantined, by cause (``poison_observe_only``)."""
        with clear_errors("reading what was observed"):
            raw: Any = self._client.hgetall(self._keys.would)
        return {cause.decode("utf-8", "replace"): int(number) for cause, number in sorted(raw.items())}

    def untold(self) -> set[str]:
        """Return the task ids of which some worker shall tell Flower something."""
        with clear_errors("reading news"):
            raw: Any = self._client.hkeys(self._keys.untold)
        return {id.decode("utf-8", "replace") for id in raw}

    def counts(self) -> dict[str, int]:
        """Return the totals since the ledger began, as docs/keys.md names them."""
        with clear_errors("reading the totals"):
            raw: Any = self._client.hgetall(self._keys.counts)
        return {name.decode("utf-8", "replace"): int(number) for name, number in raw.items()}

    def monitor(self) -> str:
        """Return the incarnation that holds the monitor's lock, or the empty string."""
        with clear_errors("reading the monitor"):
            raw: Any = self._client.get(self._keys.monitor)
        return raw.decode() if raw else ""

    def journal(self, *, id: str = "", count: int = 1000) -> list[dict[str, str]]:
        """Return the newest journal entries, oldest first; only those of task ``id`` if given."""
        with clear_errors("reading the journal"):
            rows: Any = self._client.xrevrange(self._keys.journal, count=count)
        entries = [entry(key, row) for key, row in reversed(rows)]
        return [found for found in entries if not id or found["id"] == id]

    def journal_age(self) -> float:
        """Return for how many seconds the journal has been written; 0 when it is empty."""
        with clear_errors("reading the journal"):
            oldest: Any = self._client.xrange(self._keys.journal, count=1)
        return (self.now_ms() - int(oldest[0][0].partition(b"-")[0])) / 1000 if oldest else 0.0

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
                page: Any = self._client.zrange(index, position, position + _PAGE - 1, desc=newest_first)
            if not page:
                return
            yield [word.decode() for word in page]
            position += len(page)


def _named(row: list[bytes | None]) -> dict[str, str]:
    found = zip(_RECORD_FIELDS, row, strict=True)
    raw = {name: value.decode("utf-8", "replace") for name, value in found if value is not None}
    return raw if raw.get("state") else {}


def _text(row: Mapping[bytes, bytes]) -> dict[str, str]:
    return {key.decode(): value.decode("utf-8", "replace") for key, value in row.items()}


def _state_of_start(raw: bytes | None) -> State:
    return State.DLNG if raw and Start.decode(raw).phase == Phase.RUNNING else State.TBDL


def _running(mid: str, start: Start, lineage: dict[str, str]) -> dict[str, str]:
    """Describe a running start; its lineage, if it has one, knows the counts."""
    told = {"id": start.id, "mid": mid, "task": start.task, "queue": start.queue, "worker": start.worker}
    numbers = {"deliveries": start.deliveries, "payload_bytes": start.payload_bytes, "last_seen": start.at_ms}
    return {**lineage, **told, **{name: str(number) for name, number in numbers.items()}}


def _batches(items: Iterator[_T]) -> Iterator[list[_T]]:
    while batch := list(islice(items, _PAGE)):
        yield batch


def _seconds(text: str | None) -> float | None:
    return int(text) / 1000 if text else None


def _worker(worker: str, beat: float, alive: bool, row: dict[bytes, bytes]) -> WorkerRecord:
    raw = _text(row)
    return WorkerRecord(
        worker=worker,
        node=raw.get("node", worker.partition("/")[0]),
        pid=int(raw.get("pid") or 0),
        pool=raw.get("pool", ""),
        concurrency=int(raw.get("concurrency") or 0),
        queues=raw.get("queues", ""),
        started_at=_seconds(raw.get("started_at")),
        last_beat=beat / 1000,
        alive=alive,
        stopping=raw.get("stopping") == "1",
        unguarded=int(raw.get("unguarded") or 0) + int(raw.get("unpromised") or 0),
        ledger_errors=int(raw.get("ledger_errors") or 0),
    )


def _incident(raw: dict[str, str]) -> Incident:
    return Incident(
        incident=raw["incident"],
        worker=raw["worker"],
        cause=raw["cause"],
        how=raw.get("how", ""),
        died_at=_seconds(raw.get("died_at")),
        noticed_at=_seconds(raw.get("noticed_at")),
        last_beat=_seconds(raw.get("last_beat")),
        finished_at=_seconds(raw.get("finished_at")),
        flagged=int(raw.get("flagged") or 0),
        put_back=int(raw.get("put_back") or 0),
        returned=json.loads(raw.get("returned") or "{}"),
        reconnected=raw.get("reconnected") == "1",
        release=raw.get("release", ""),
        queues=raw.get("queues", ""),
        evidence=Evidence.decode(raw.get("evidence", "")),
        processes=json.loads(raw.get("processes") or "{}"),
    )
