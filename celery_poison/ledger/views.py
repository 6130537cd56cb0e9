"""Everything that is read of a ledger, put together; it changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, make_dataclass
from typing import Any

from celery_poison.basics.numbers import is_whole, moment, whole
from celery_poison.basics.text import decoded, when
from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.fleet_read import FleetReader
from celery_poison.ledger.groups import INDEX_PAGE, Groups, Index, index_of
from celery_poison.ledger.journal_read import Wanted, entry, newest, of_task
from celery_poison.ledger.messages_read import Messages, parking_of
from celery_poison.ledger.rows import Row, as_text, batches
from celery_poison.model import READERS, MessageRecord, ParkingState, Phase, Record, Start
from celery_poison.states import State

#: A record where every field is empty.
_NOTHING = MessageRecord(id="", mid="", task="", queue="", state="")

#: What is published of a message again.
_ORIGINAL_FIELDS = (
    *("body", "content_type", "content_encoding", "headers", "properties", "failure", "sent_at"),
    *("destination", "canvas"),
)
#: Fields beside the days: deaths in five minutes (seconds), and when the last one was.
_LATELY, _LAST, _TASK, _SLOT = "lately", "lately last", b"lately task", 300
#: Candidates that are read before more than these are asked for.
_FIRST_FLAGGED = 20_000
_BEHIND = "parked until its earlier start ends, or its task is resumed"
_AWAITS = "parked until its idempotency key is free, or the hold is lifted that caught it"
_FOR_TRIAL, _UNTIL_DUE = "parked on its way to its trial", "put back, and parked until "
#: Entries of an index that are read at first in one exchange with Redis.
_INDEX_FIRST = 256
#: Keys that are looked at for other namespaces, and at once.
_SEARCHED, _STEP = 200_000, 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Lately(Record):
    """Deaths of tasks in the last day.

    Attributes:
        last: when the last task died, in seconds of Redis' clock; None: none that is on record.
        task: its name; empty: not on record.
        by_hour: deaths in each of the last 24 hours, the newest hour last.
    """

    last: float | None
    by_hour: list[int]
    task: str = ""


class Views(Messages, FleetReader, Groups):
    """Reads one ledger: its ``read``. Every method raises ``LedgerUnavailable`` when Redis is away."""

    def waiting(self) -> Iterator[MessageRecord]:
        """Yield the parked messages (TBDL)."""
        for page in batches(self.parked_now()):
            awaited, times = self.awaited_by(mid for mid, _ in page)
            for mid, parked in page:
                why = _AWAITS if mid in awaited else _FOR_TRIAL if parked.start.alone else _BEHIND
                why = _UNTIL_DUE + when(times[mid] / 1000) if mid in times else why
                fields = {"last_seen": str(parked.number), "reason": why}
                yield MessageRecord.from_hash({**described(mid, parked.start, {}), **fields}, State.TBDL)

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
        return self._index(index_of(self._keys, state), since, until, oldest_first=oldest_first)

    def kept_ids(self, state: State) -> Iterator[tuple[str, str]]:
        """Yield (mid, task id) of what is in quarantine (NDLV) or given up, newest first."""
        for mid, (id,) in self._rows((mid for mid, _ in self.index(state)), ("id",)):
            if id:
                yield mid, id

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
        return [decoded(mid) for mid, due in rows if due <= now_ms]

    def oldest(self) -> MessageRecord | None:
        """Return the record of what has been in quarantine for longest."""
        mids = self.longest_kept(1)
        return self.record(mids[0]) if mids else None

    def longest_kept(self, limit: int) -> list[str]:
        """Return the mids of what has been in quarantine for longest."""
        with clear_errors("reading an index"):
            mids: Any = self._client.zrange(self._keys.quarantine, 0, limit - 1)
        return [decoded(mid) for mid in mids]

    def originals(self, mids: Iterable[str]) -> list[dict[str, bytes]]:
        """Return the stored fields to publish each of these messages again, in one round trip; {}: unknown.

        For few at a time: bodies may be large.
        """
        words: list[str | int] = [self._keys.message(""), len(_ORIGINAL_FIELDS), *_ORIGINAL_FIELDS, *mids]
        with clear_errors("reading messages"):
            reply: Any = self._script("originals")([self._keys.quarantine], words)
        # What is not Unicode survives as half a surrogate pair.
        rows = json.loads(reply[1].decode("utf-8", "surrogateescape"))
        return [_original(row, body) for row, body in zip(rows, reply[2:], strict=True)]

    def candidates(self) -> Iterator[MessageRecord]:
        """Yield the messages flagged as candidates that wait or run, oldest flag first (SAP-5)."""
        for ids in batches(self._candidate_ids()):
            lineages = [row for row in self._lineages(ids) if row]
            places = self._places([lineage.get("mid", "") for lineage in lineages])
            for lineage, (state, place) in zip(lineages, places, strict=True):
                yield MessageRecord.from_hash({**lineage, "reason": place}, state)

    def observed(self) -> list[MessageRecord]:
        """Return what was convicted and goes on (``poison_observe_only``): most deaths first, at most 100."""
        with clear_errors("reading candidates"):
            ids: Any = self._client.zrange(self._keys.candidates, 0, _FIRST_FLAGGED - 1)
        lineages = self._lineages(decoded(id) for id in ids)
        found = [MessageRecord.from_hash(row, State.TBDL) for row in lineages if row.get("observed")]
        return sorted(found, key=lambda record: -record.crashes)

    def _places(self, mids: list[str]) -> Iterator[tuple[State, str]]:
        """Yield the state of each candidate, and where it is at this moment."""
        parked = dict(self._fields(self._keys.parked, mids))
        for mid, start in zip(mids, self.starts(mids), strict=True):
            state = State.DLNG if start is not None and start.phase == Phase.RUNNING else State.TBDL
            parking = parking_of(parked[mid])
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
        return {"on_trial": on_trial, "suspected_since": moment(oldest[0][1]) / 1000 if oldest else None}

    def _candidate_ids(self) -> Iterator[str]:
        """Yield the task ids of all candidates; there may be a million, and who asks wants a few."""
        seen = set[bytes]()
        for last in (_FIRST_FLAGGED - 1, -1):
            with clear_errors("reading candidates"):
                ids: Any = self._client.zrange(self._keys.candidates, 0, last)
            yield from (decoded(id) for id in ids if id not in seen)
            if len(ids) < _FIRST_FLAGGED:
                return
            seen.update(ids)

    def live(self) -> Iterator[MessageRecord]:
        """Yield the messages that run at this moment (DLNG), with their histories where they have one."""
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
            fields = as_text(raw)
            if "id" not in fields:  # nothing, or the note of a death that was only observed
                return None
            mid = fields.get("mid", "")
            state = self._live_states([mid])[0]
            has_ended = state is State.TBDL and fields.get("ended") == mid
            return MessageRecord.from_hash(fields, State.DLVD if has_ended else state)

    def _live_states(self, mids: list[str]) -> list[State]:
        running = (start is not None and start.phase == Phase.RUNNING for start in self.starts(mids))
        return [State.DLNG if runs else State.TBDL for runs in running]

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
            flat = json.loads(decoded(reply[1]))
            if not flat:
                return
            scores = flat[1::2]
            yield [(mid, float(moment(float(score)))) for mid, score in zip(flat[::2], scores, strict=True)]
            if scores[0] == scores[-1]:  # some that were skipped may have the same
                skip += len(scores)
            else:
                first, skip = scores[-1], scores.count(scores[-1])
            if len(scores) < size:
                return
            size = min(4 * size, INDEX_PAGE)

    def totals(self) -> dict[str, int]:
        """Return how many messages are in quarantine, failed, candidates, running, parked and leaving."""
        with clear_errors("counting"):
            pipe = self._client.pipeline(transaction=False)
            pipe.zcard(self._keys.quarantine)
            pipe.zcard(self._keys.failed)
            pipe.zcard(self._keys.candidates)
            pipe.hlen(self._keys.running)
            pipe.hlen(self._keys.done)
            pipe.xlen(self._keys.journal)
            pipe.hlen(self._keys.parcels)
            pipe.zcard(self._keys.outgoing)
            counts = pipe.execute()
        names = ("quarantined", "failed", "candidates", "running", "ended", "journal", "parked", "leaving")
        totals = dict(zip(names, counts, strict=True))
        # What was acknowledged a moment ago is not forgotten yet.
        totals["running"] = max(0, totals["running"] - totals.pop("ended"))
        return totals

    def counts(self) -> dict[str, int]:
        """Return the totals since the ledger began, as docs/keys.md names them."""
        with clear_errors("reading the totals"):
            raw: Any = self._client.hgetall(self._keys.counts)
        return {decoded(name): whole(number) for name, number in raw.items()}

    def deaths_by_day(self) -> dict[tuple[int, str], int]:
        """Return how often messages of a task died on a day, of the last fourteen.

        Returns:
            (days since 1970 in UTC, task) -> deaths. The empty name: of tasks beyond fifty on that day.
        """
        with clear_errors("reading the deaths by day"):
            raw: Any = self._client.hgetall(self._keys.deaths_by_day)
        deaths = {decoded(name).partition(" "): whole(number) for name, number in raw.items()}
        return {(whole(day), task): number for (day, _, task), number in deaths.items() if is_whole(day)}

    def deaths_lately(self, now: float) -> Lately:
        """Return how often tasks died in the last day, and when the last did.

        Args:
            now: in seconds of Redis' clock.
        """
        with clear_errors("reading the latest deaths"):
            raw: Any = self._client.hgetall(self._keys.deaths_by_day)
        task = decoded(raw.pop(_TASK, b""))
        found = {decoded(name): whole(number) for name, number in raw.items()}
        last = found.pop(_LAST, 0)
        slots = Counter[int]()
        for name, number in found.items():
            of, _, slot = name.partition(" ")
            if of == _LATELY and is_whole(slot):
                # Whole hours before now; a slot that is half gone counts where its end is.
                slots[int(max(0.0, now - (int(slot) + 1) * _SLOT) // 3600)] += number
        return Lately(
            last=last / 1000 if last else None, by_hour=[slots[hour] for hour in range(24)][::-1], task=task
        )

    def neighbours(self) -> list[str]:
        """Return the namespaces in this Redis, as far as a short search finds them; [] if refused."""
        namespaces, cursor = set[str](), 0
        with suppress(LedgerUnavailable), clear_errors("looking for other namespaces"):
            for _ in range(_SEARCHED // _STEP):
                reply: Any = self._client.scan(cursor, match="{*}:meta", count=_STEP)
                cursor = reply[0]
                namespaces.update(decoded(key)[1:-6] for key in reply[1])
                if not cursor:
                    break
        return sorted(namespaces)

    def would_quarantine(self) -> dict[str, int]:
        """Return how many messages would have been quarantined, by cause (``poison_observe_only``)."""
        with clear_errors("reading what was observed"):
            raw: Any = self._client.hgetall(self._keys.would)
        return {decoded(cause): whole(number) for cause, number in sorted(raw.items())}

    def journal_age(self) -> float:
        """Return for how many seconds the journal has been written; 0 when it is empty."""
        with clear_errors("reading the journal"):
            oldest: Any = self._client.xrange(self._keys.journal, count=1)
        return (self.now_ms() - int(oldest[0][0].partition(b"-")[0])) / 1000 if oldest else 0.0

    def journal(
        self, *, id: str = "", count: int = 1000, wanted: Wanted | None = None, since: float | None = None
    ) -> list[dict[str, str]]:
        """Return the newest journal entries, oldest first; only those of task ``id`` if given.

        Args:
            count: of them; where ``wanted`` chooses, among the newest 50,000.
            wanted: whether an entry is meant; None: each.
            since: only of this moment and later, in seconds of Redis' clock.
        """
        if wanted or since is not None:
            return newest(self._client, self._keys, count, wanted or (lambda each: True), since)
        with clear_errors("reading the journal"):
            rows: Any = self._client.xrevrange(self._keys.journal, count=count)
        entries = [entry(key, row) for key, row in reversed(rows)]
        return [found for found in entries if not id or found["id"] == id]

    def journal_of_task(
        self, task: str, since: float, until: float, **bounds: Any
    ) -> tuple[list[dict[str, str]], float]:
        """Return the entries about messages of a task, newest first, and how far back it was read."""
        return of_task(self._client, self._keys, task, since, until, **bounds)

    def ended_runs(self, task: str) -> int:
        """Return how many runs of a task have ended, where these are only counted (``poison_journal``)."""
        with clear_errors("reading the tally"):
            raw: Any = self._client.hget(self._keys.tally, task)
        return whole(raw)

    def fingerprint_secret(self) -> bytes:
        """Return the ledger's key of fingerprints; empty before the first worker signed it."""
        with clear_errors("reading the key of fingerprints"):
            found: Any = self._client.hget(self._keys.meta, "secret")
        return found or b""

    def meta(self) -> dict[str, str]:
        """Return how the ledger is signed: schema, app, broker; {} before the first worker signed it."""
        names = ("schema", "app", "broker", "address", "server")
        with clear_errors("reading whose ledger this is"):
            row: Any = self._client.hmget(self._keys.meta, names)
        found = zip(names, row, strict=True)
        return {name: value.decode(errors="replace") for name, value in found if value is not None}


def described(mid: str, start: Start, lineage: dict[str, str]) -> dict[str, str]:
    """Describe a running start; its lineage, if it has one, knows the counts."""
    fields = {"id": start.id, "mid": mid, "task": start.task, "queue": start.queue, "worker": start.worker}
    numbers = {"deliveries": start.deliveries, "payload_bytes": start.payload_bytes, "last_seen": start.at_ms}
    return {**lineage, **fields, **{name: str(number) for name, number in numbers.items()}}


def _original(row: Row, body: bytes | None) -> dict[str, bytes]:
    words = zip(_ORIGINAL_FIELDS, row, strict=True)
    raw = {name: word.encode("utf-8", "surrogateescape") for name, word in words if word is not False}
    return raw if body is None else {**raw, "body": body}
