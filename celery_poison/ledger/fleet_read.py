"""Reading workers, incidents, the fleet gate and the monitor, which changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import redis

from celery_poison.basics.numbers import moment, whole
from celery_poison.basics.text import decoded
from celery_poison.causes import Evidence
from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.fleet_model import GateRecord, Incident, WorkerRecord
from celery_poison.ledger.keys import life_of
from celery_poison.ledger.rows import Reader, as_text, seconds, strings
from celery_poison.portrait import Portrait


class FleetReader(Reader):
    """Reads workers and incidents."""

    def workers(self, activation_ms: int) -> list[WorkerRecord]:
        """Return every worker that holds a lease, the longest silent first."""
        now = self.now_ms()
        with clear_errors("reading workers"):
            leases: Any = self._client.zrange(self._keys.leases, 0, -1, withscores=True)
            pipe = self._client.pipeline(transaction=False)
            for worker, _ in leases:
                pipe.hgetall(self._keys.worker(decoded(worker)))
            pipe.hgetall(self._keys.presence)
            *rows, presence = pipe.execute()
        records = []
        for (name, beat), row in zip(leases, rows, strict=True):
            worker = _worker(decoded(name), moment(beat), now - beat < activation_ms, row)
            records.append(replace(worker, noticed_by="connection") if presence.get(name) else worker)
        return records

    def frozen(self, workers: Iterable[WorkerRecord]) -> list[WorkerRecord]:
        """Return the workers that were taken for dead since they were silent, and are connected still.

        None that is back, or whose node has a living worker again.

        Args:
            workers: those that hold a lease.
        """
        lives = {life_of(each.worker) for each in workers}
        connected = self._connected() - lives
        if not connected:
            return []
        with clear_errors("reading who was taken for dead"):
            gone: Any = self._client.zrange(self._keys.buried, 0, -1)
            last = {life_of(name): name for name in map(decoded, gone)}  # of each life, the last name
            wanted = {last[life] for life in connected if life in last}
            ids: Any = self._client.zrevrange(self._keys.incidents, 0, -1) if wanted else []
            pipe = self._client.pipeline(transaction=False)
            for id in ids:
                pipe.hgetall(self._keys.incident(decoded(id)))
            found = [_incident(as_text(raw)) for raw in pipe.execute() if raw]
        nodes = {each.node for each in workers if each.alive}
        silent = (each for each in found if each.worker in wanted and each.how in ("frozen", "silent"))
        return [each for each in map(_frozen, silent) if each.node not in nodes]

    def _connected(self) -> set[str]:
        """Return the lives of workers with a connected process; none where Redis does not tell."""
        pattern = re.sub(r"([][*?\\])", r"\\\1", self._keys.alive) + "*"
        try:
            with clear_errors("asking which workers are connected"):
                channels: Any = self._client.pubsub_channels(pattern)
        except LedgerUnavailable as error:
            if isinstance(error.__cause__, redis.ResponseError):
                return set()
            raise
        return {decoded(each).removeprefix(self._keys.alive) for each in channels}

    def leases(self) -> dict[str, int]:
        """Return the last heartbeat of every worker, in ms of Redis' clock."""
        with clear_errors("reading leases"):
            raw: Any = self._client.zrange(self._keys.leases, 0, -1, withscores=True)
        return {decoded(worker): moment(beat) for worker, beat in raw}

    def monitor_fence(self) -> tuple[str, int]:
        """Return the holder of the monitor's lock, or the empty string, and the lock's fencing number."""
        with clear_errors("reading the monitor"):
            pipe = self._client.pipeline(transaction=False)
            pipe.get(self._keys.monitor)
            pipe.get(self._keys.monitor_fence)
            holder, fence = pipe.execute()
        return decoded(holder) if holder else "", whole(fence)

    def open_incidents(self) -> dict[str, str]:
        """Return dead workers whose messages are still being put back, with their incident."""
        with clear_errors("reading open incidents"):
            raw: Any = self._client.hgetall(self._keys.open)
        return {decoded(worker): decoded(incident) for worker, incident in raw.items()}

    def incident(self, incident: str) -> Incident | None:
        with clear_errors("reading an incident"):
            raw: Any = self._client.hgetall(self._keys.incident(incident))
        return _incident(as_text(raw)) if raw else None

    def incidents_since(self, at_ms: int) -> dict[str, int]:
        """Return the incidents that were noticed since, in their order, and when, in ms of Redis' clock."""
        with clear_errors("reading incidents"):
            found: Any = self._client.zrange(
                self._keys.incidents, at_ms, "+inf", byscore=True, withscores=True
            )
        return {decoded(incident): moment(at) for incident, at in found}

    def recent_deaths(self, seconds: float) -> int:
        """Return how many workers were declared dead in the last ``seconds`` (of the last thousand)."""
        with clear_errors("counting deaths of workers"):
            least = self.now_ms() - 1000 * seconds
            return int(self._client.zcount(self._keys.incidents, least, "+inf"))

    def declared_dead(self, limit: int = 1000) -> dict[str, int]:
        """Return the newest workers that ended or were declared dead, and when, in ms of Redis' clock."""
        with clear_errors("reading who is gone"):
            raw: Any = self._client.zrange(self._keys.buried, 0, limit - 1, desc=True, withscores=True)
        return {decoded(worker): moment(at) for worker, at in raw}

    def monitor(self) -> str:
        """Return the incarnation that holds the monitor's lock, or the empty string."""
        with clear_errors("reading the monitor"):
            raw: Any = self._client.get(self._keys.monitor)
        return decoded(raw) if raw else ""

    def incidents(self, limit: int = 100) -> list[Incident]:
        """Return the newest incidents first."""
        with clear_errors("reading incidents"):
            ids: Any = self._client.zrevrange(self._keys.incidents, 0, limit - 1)
        found = (self.incident(decoded(id)) for id in ids)
        return [incident for incident in found if incident]

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
            deaths=whole(gate.get("deaths")),
            fleet=whole(gate.get("fleet")),
            lifted_at=seconds(gate.get("lifted_at")),
            lifted_by=gate.get("lifted_by", ""),
        )


def _names(joined: str) -> tuple[str, ...]:
    return tuple(filter(None, joined.split(",")))


def _worker(worker: str, beat: float, alive: bool, row: dict[bytes, bytes]) -> WorkerRecord:
    raw = as_text(row)
    return WorkerRecord(
        worker=worker,
        node=raw.get("node", worker.partition("/")[0]),
        host=raw.get("host", ""),
        pid=whole(raw.get("pid")),
        pool=raw.get("pool", ""),
        concurrency=whole(raw.get("concurrency")),
        queues=raw.get("queues", ""),
        paused=raw.get("paused", ""),
        started_at=seconds(raw.get("started_at")),
        last_beat=beat / 1000,
        alive=alive,
        stopping=raw.get("stopping") == "1",
        unguarded=whole(raw.get("unguarded")) + whole(raw.get("unpromised")),
        ledger_errors=whole(raw.get("ledger_errors")),
        troubled_at=seconds(raw.get("troubled_at")),
        forgotten_at=seconds(raw.get("forgotten_at")),
        guarded_tasks=whole(raw.get("guarded_tasks")),
        unguarded_tasks=_names(raw.get("unguarded_tasks", "")),
        observed_tasks=_names(raw.get("observed_tasks", "")),
        heard_at=(beat - whole(raw["quiet_ms"])) / 1000 if raw.get("quiet_ms") else None,
        room=whole(raw.get("room") or raw.get("concurrency")),  # an older version does not write it
        cells=raw.get("cells", ""),
        code_version=raw.get("release", ""),
        portrait=Portrait.decode(raw.get("portrait", "")),
        stack=strings(raw.get("stack")),
    )


def _incident(raw: dict[str, str]) -> Incident:
    return Incident(
        incident=raw.get("incident", ""),
        worker=raw.get("worker", ""),
        cause=raw.get("cause", ""),
        how=raw.get("how", ""),
        died_at=seconds(raw.get("died_at")),
        noticed_at=seconds(raw.get("noticed_at")),
        last_beat=seconds(raw.get("last_beat")),
        finished_at=seconds(raw.get("finished_at")),
        flagged=whole(raw.get("flagged")),
        put_back=whole(raw.get("put_back")),
        returned=_returned(raw.get("returned", "")),
        reconnected=raw.get("reconnected") == "1",
        release=raw.get("release", ""),
        queues=raw.get("queues", ""),
        host=raw.get("host", ""),
        pid=whole(raw.get("pid")),
        evidence=Evidence.decode(raw.get("evidence", "")),
    )


def _frozen(incident: Incident) -> WorkerRecord:
    return WorkerRecord(
        worker=incident.worker,
        node=incident.worker.partition("/")[0],
        host=incident.host,
        pid=incident.pid,
        queues=incident.queues,
        last_beat=incident.last_beat,
        alive=False,
        stack=incident.evidence.stack,
        frozen_since=incident.noticed_at,
    )


def _returned(text: str) -> dict[str, int]:
    """Return messages by queue; none where that cannot be read."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {queue: number for queue, number in found.items() if isinstance(number, int)}
