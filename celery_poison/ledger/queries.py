"""Reading the ledger, which changes nothing: messages (``reading``), workers and incidents, totals."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

from celery_poison.causes import Evidence
from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.fleet_model import GateRecord, Incident, WorkerRecord
from celery_poison.ledger.journal import entry
from celery_poison.ledger.messages_read import Messages
from celery_poison.ledger.rows import Groups, Reader, as_text, seconds

#: Keys that are looked at for other namespaces, and at once.
_SEARCHED, _STEP = 200_000, 5000


class _Fleet(Reader):
    """Reads workers and incidents."""

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
        records = []
        for (name, beat), row in zip(leases, rows, strict=True):
            worker = _worker(name.decode(), beat, now - beat < activation_ms, row)
            records.append(replace(worker, noticed_by="connection") if presence.get(name) else worker)
        return records

    def leases(self) -> dict[str, int]:
        """Return the last heartbeat of every worker, in ms of Redis' clock."""
        with clear_errors("reading leases"):
            raw: Any = self._client.zrange(self._keys.leases, 0, -1, withscores=True)
        return {worker.decode(): int(beat) for worker, beat in raw}

    def declared_dead(self, limit: int = 1000) -> dict[str, int]:
        """Return the newest workers that ended or were declared dead, and when, in ms of Redis' clock."""
        with clear_errors("reading who is gone"):
            raw: Any = self._client.zrange(self._keys.buried, 0, limit - 1, desc=True, withscores=True)
        return {worker.decode(): int(at) for worker, at in raw}

    def monitor(self) -> str:
        """Return the incarnation that holds the monitor's lock, or the empty string."""
        with clear_errors("reading the monitor"):
            raw: Any = self._client.get(self._keys.monitor)
        return raw.decode() if raw else ""

    def monitor_fence(self) -> tuple[str, int]:
        """Return the holder of the monitor's lock, or the empty string, and the lock's fencing number."""
        with clear_errors("reading the monitor"):
            pipe = self._client.pipeline(transaction=False)
            pipe.get(self._keys.monitor)
            pipe.get(self._keys.monitor_fence)
            holder, fence = pipe.execute()
        return holder.decode() if holder else "", int(fence or 0)

    def open_incidents(self) -> dict[str, str]:
        """Return dead workers whose messages are still being put back, with their incident."""
        with clear_errors("reading open incidents"):
            raw: Any = self._client.hgetall(self._keys.open)
        return {worker.decode(): incident.decode() for worker, incident in raw.items()}

    def incident(self, incident: str) -> Incident | None:
        with clear_errors("reading an incident"):
            raw: Any = self._client.hgetall(self._keys.incident(incident))
        return _incident(as_text(raw)) if raw else None

    def incidents(self, limit: int = 100) -> list[Incident]:
        """Return the newest incidents first."""
        with clear_errors("reading incidents"):
            ids: Any = self._client.zrevrange(self._keys.incidents, 0, limit - 1)
        found = (self.incident(id.decode()) for id in ids)
        return [incident for incident in found if incident]

    def incidents_since(self, at_ms: int) -> dict[str, int]:
        """Return the incidents that were noticed since, in their order, and when, in ms of Redis' clock."""
        with clear_errors("reading incidents"):
            found: Any = self._client.zrange(
                self._keys.incidents, at_ms, "+inf", byscore=True, withscores=True
            )
        return {incident.decode(): int(at) for incident, at in found}

    def recent_deaths(self, seconds: float) -> int:
        """Return how many workers were declared dead in the last ``seconds`` (of the last thousand)."""
        with clear_errors("counting deaths of workers"):
            least = self.now_ms() - 1000 * seconds
            return int(self._client.zcount(self._keys.incidents, least, "+inf"))

    def gate(self) -> GateRecord:
        """Return how the fleet gate stands."""
        with clear_errors("reading the fleet gate"):
            raw: Any = self._client.hgetall(self._keys.gate)
        gate, now = as_text(raw), self.now_ms() / 1000 if raw else 0.0
        until = seconds(gate.get("until"))
        return GateRecord(
            closed=until is not None and until > now,
            closed_at=seconds(gate.get("closed_at")),
            until=until,
            deaths=int(gate.get("deaths") or 0),
            fleet=int(gate.get("fleet") or 0),
            lifted_at=seconds(gate.get("lifted_at")),
            lifted_by=gate.get("lifted_by", ""),
        )


class Queries(Messages, Groups, _Fleet):
    """Typed views of one ledger; every method raises ``LedgerUnavailable`` when Redis is away."""

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
        return {name.decode("utf-8", "replace"): int(number) for name, number in raw.items()}

    def deaths_by_day(self) -> dict[tuple[int, str], int]:
        """Return how often messages of a task died on a day, of the last fourteen.

        Returns:
            (days since 1970 in UTC, task) -> deaths. The empty name: of tasks beyond fifty on that day.
        """
        with clear_errors("reading the deaths by day"):
            raw: Any = self._client.hgetall(self._keys.deaths_by_day)
        deaths = {name.decode("utf-8", "replace").partition(" "): int(number) for name, number in raw.items()}
        return {(int(day), task): number for (day, _, task), number in deaths.items() if day.isdecimal()}

    def neighbours(self) -> list[str]:
        """Return the namespaces in this Redis, as far as a short search finds them; [] if refused."""
        namespaces, cursor = set[str](), 0
        with suppress(LedgerUnavailable), clear_errors("looking for other namespaces"):
            for _ in range(_SEARCHED // _STEP):
                reply: Any = self._client.scan(cursor, match="{*}:meta", count=_STEP)
                cursor = reply[0]
                namespaces.update(key.decode("utf-8", "replace")[1:-6] for key in reply[1])
                if not cursor:
                    break
        return sorted(namespaces)

    def would_quarantine(self) -> dict[str, int]:
        """Return how many messages would have been quarantined, by cause (``poison_observe_only``)."""
        with clear_errors("reading what was observed"):
            raw: Any = self._client.hgetall(self._keys.would)
        return {cause.decode("utf-8", "replace"): int(number) for cause, number in sorted(raw.items())}

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


def _names(joined: str) -> tuple[str, ...]:
    return tuple(filter(None, joined.split(",")))


def _worker(worker: str, beat: float, alive: bool, row: dict[bytes, bytes]) -> WorkerRecord:
    raw = as_text(row)
    return WorkerRecord(
        worker=worker,
        node=raw.get("node", worker.partition("/")[0]),
        host=raw.get("host", ""),
        pid=int(raw.get("pid") or 0),
        pool=raw.get("pool", ""),
        concurrency=int(raw.get("concurrency") or 0),
        queues=raw.get("queues", ""),
        paused=raw.get("paused", ""),
        started_at=seconds(raw.get("started_at")),
        last_beat=beat / 1000,
        alive=alive,
        stopping=raw.get("stopping") == "1",
        unguarded=int(raw.get("unguarded") or 0) + int(raw.get("unpromised") or 0),
        ledger_errors=int(raw.get("ledger_errors") or 0),
        troubled_at=seconds(raw.get("troubled_at")),
        forgotten_at=seconds(raw.get("forgotten_at")),
        guarded_tasks=int(raw.get("guarded_tasks") or 0),
        unguarded_tasks=_names(raw.get("unguarded_tasks", "")),
        observed_tasks=_names(raw.get("observed_tasks", "")),
        heard_at=(beat - int(raw["quiet_ms"])) / 1000 if raw.get("quiet_ms") else None,
        room=int(raw.get("room") or raw.get("concurrency") or 0),  # an older version does not write it
        cells=raw.get("cells", ""),
        code_version=raw.get("release", ""),
    )


def _incident(raw: dict[str, str]) -> Incident:
    return Incident(
        incident=raw["incident"],
        worker=raw["worker"],
        cause=raw["cause"],
        how=raw.get("how", ""),
        died_at=seconds(raw.get("died_at")),
        noticed_at=seconds(raw.get("noticed_at")),
        last_beat=seconds(raw.get("last_beat")),
        finished_at=seconds(raw.get("finished_at")),
        flagged=int(raw.get("flagged") or 0),
        put_back=int(raw.get("put_back") or 0),
        returned=json.loads(raw.get("returned") or "{}"),
        reconnected=raw.get("reconnected") == "1",
        release=raw.get("release", ""),
        queues=raw.get("queues", ""),
        evidence=Evidence.decode(raw.get("evidence", "")),
    )
