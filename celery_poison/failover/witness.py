"""What can be said about the death of a whole worker, by who notices it (NEW-2).

The last heartbeat tells the memory, the limit, and whether it had been asked to leave. An observer on the
same machine also sees whether its main process is there, and whether the kernel has killed for want of
memory since.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from celery_poison import machine
from celery_poison.evidence import NEAR, Evidence
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.fleet import Silence


class Testimony(NamedTuple):
    """What is known about a death, and the peak memory of the worker's processes in KiB, both as JSON."""

    evidence: str
    processes: str


def testify(ledger: Ledger, worker: str, how: Silence) -> Testimony:
    """Say what is known at this moment about a worker that is about to be declared dead.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading the last heartbeat of a worker"):
        pipe = ledger.client.pipeline(transaction=False)
        pipe.hmget(ledger.keys.worker(worker), "vitals", "pid")
        pipe.zscore(ledger.keys.leases, worker)
        pipe.hget(ledger.keys.gone, worker)
        pipe.time()
        (vitals, pid), beat, gone, (seconds, micros) = pipe.execute()
    now = seconds * 1000 + micros // 1000
    ended = int(gone) if how is Silence.GONE and gone else now
    heard_ms = max(0, ended - int(beat)) if beat is not None else None
    try:
        told = json.loads(vitals or b"{}")
        evidence = _evidence(told, int(pid or 0), how, heard_ms)
        processes = json.dumps(told.get("peaks_kb", {}), separators=(",", ":"))
    except (ValueError, TypeError, KeyError, AttributeError):  # another version's
        evidence, processes = Evidence(noticed=how, heard_ms=heard_ms), "{}"
    return Testimony(evidence.encode(), processes)


def _evidence(told: dict[str, Any], pid: int, how: Silence, heard_ms: int | None) -> Evidence:
    if not told:
        return Evidence(noticed=how, heard_ms=heard_ms)
    limit = told["limit_kb"]
    return Evidence(
        noticed=how,
        heard_ms=heard_ms,
        used_kb=told["used_kb"] or None,
        worker_kb=told["worker_kb"] or None,
        limit_kb=limit or None,
        limit_of=told["limit_of"] if limit else "",
        near_limit=told["used_kb"] >= NEAR * limit if limit else None,
        asked=told.get("asked", ""),
        asked_ms=told["asked_ms"] + (heard_ms or 0) if "asked_ms" in told else None,
        process=_process(told, pid),
        oom=_was_for_memory(told),
    )


def _process(told: dict[str, Any], pid: int) -> str:
    """Return what became of the main process, if it ran where this process runs; else nothing."""
    is_here = pid > 0 and told["began"] and told["place"] and told["place"] == machine.place()
    return machine.became_of(pid, told["began"]).value if is_here else ""


def _was_for_memory(told: dict[str, Any]) -> bool | None:
    """Return whether the kernel has killed for want of memory since the heartbeat; None: nobody can say."""
    if not told["counter"] or told["counter"] != machine.counter(told["events"]):
        return None
    kills = machine.kills(told["events"])
    if kills is None:
        return None
    # Of a whole machine's kills only one that fits the worker is its own.
    fits = told["limit_of"] == "group" or 2 * told["worker_kb"] >= told["limit_kb"]
    return bool(kills > told["kills"] and fits)
