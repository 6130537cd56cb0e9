"""Reads an ``Overview`` from the ledger, the broker and this machine; names what is broken or doubtful."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import redis
from celery import Celery

from celery_poison import causes
from celery_poison.basics.calling import gather
from celery_poison.basics.text import command, count_of, duration, some_of, when, without_secrets
from celery_poison.desk.overview import Lost, Overview
from celery_poison.desk.owner import check_owner
from celery_poison.desk.queues import find_deaf, read_backlogs
from celery_poison.desk.stranded import find_stranded
from celery_poison.errors import ConfigurationError
from celery_poison.keep.spool import spooled_here
from celery_poison.ledger import Ledger, policies
from celery_poison.ledger.connection import check_server
from celery_poison.ledger.fleet_model import Incident, WorkerRecord
from celery_poison.ledger.memory import SHARE
from celery_poison.ledger.second_person import wishes
from celery_poison.ledger.views import Views
from celery_poison.plugin import Plugin, plugin_of
from celery_poison.rules.blocks import read_rules
from celery_poison.settings import Settings
from celery_poison.states import Event

#: Incidents that are looked at for workers that have not come back.
LOST_NAMED = 20
#: Seconds after which nobody waits any more for a dead worker's node: a pod's name does not come back.
_MISSED_FOR = 86_400
#: Messages that no worker works on, each with a warning of its own.
_STUCK_NAMED = 3
#: Seconds after which it is no news any more that Redis came back without what it had.
OLD_NEWS = 3600
#: Shares of ``maxmemory``, and of what one kind of messages may take: from there on a fault, and a warning.
FULL, NEAR = 0.9, 0.8


def overview(app: Celery, *, queues: bool = False, ledger: Ledger | None = None) -> Overview:
    """Look at the ledger of ``app``; with ``queues`` at what waits in each, even where nothing has a limit.

    Args:
        ledger: of who looks again and again; None: one with connections of its own.

    Raises:
        ConfigurationError: a setting is wrong, so that it is not known where to look.
        LedgerUnavailable: Redis is away.
    """
    plugin = plugin_of(app)
    ledger, settings = ledger or plugin.open_ledger(), plugin.settings
    queries = ledger.read
    totals: dict[str, Any] = queries.totals()  # by the names of fields
    workers = queries.workers(int(settings.activation_interval * 1000))
    deaf, unheard = find_deaf(app, queries, workers)
    backlogs, uncounted = read_backlogs(app, queries, workers, totals["quarantined"], limited_only=not queues)
    workers = [*workers, *queries.frozen(workers)]
    incidents = queries.incidents(LOST_NAMED)
    now = queries.now_ms() / 1000
    seen = Overview(
        **totals,
        **_in_ledger(queries, settings),
        **_died(plugin, queries),
        **_in_force(ledger),
        asked=wishes(ledger),
        ledger=without_secrets(plugin.ledger_url),
        panels=gather(plugin.extensions.panel, plugin.complain, ledger),
        workers=workers,
        lost=lost_workers(incidents, workers, now),
        worker_deaths=[each for each in incidents if now - (each.died_at or 0.0) < _MISSED_FOR],
        stranded=find_stranded(app),
        deaf=deaf,
        queues=backlogs,
        memory=ledger.memory.fullness()._asdict(),
    )
    unfit, doubts = _server(ledger.client)
    faults = [*_misplaced(app, queries, seen), *unfit, *_faults(seen, settings)]
    unknown = [sentence for panel in seen.panels for sentence in panel.warnings]
    return replace(
        seen,
        faults=faults,
        warnings=[*faults, *_doubts(seen, settings), *unheard, *unknown, *uncounted, *doubts],
    )


def _in_ledger(queries: Views, settings: Settings) -> dict[str, Any]:
    """Return the ledger's figures of messages and workers, by the names of fields."""
    return {
        **queries.suspects(),
        "namespace": settings.namespace,
        "oldest": queries.oldest(),
        "process_deaths": process_deaths(queries.counts()),
        "gate": queries.gate(),
        "lately": queries.deaths_lately(now := queries.now_ms() / 1000),
        "ended_at": _last_end(queries, now),
        "observe_only": settings.observe_only,
        "would_quarantine": queries.would_quarantine(),
        "observed": queries.observed() if settings.observe_only else [],
        "last_worker": last_ended(queries),
        "monitor": queries.monitor(),
        "open_incidents": queries.open_incidents(),
    }


def _died(plugin: Plugin, queries: Views) -> dict[str, Any]:
    """Return the last death of a task process where this app only observes, by the names of fields."""
    if not plugin.settings.observe_only:
        return {"last_death": {}, "deaths_allowed": plugin.settings.max_crashes}
    died = (each for each in reversed(queries.journal()) if each.get("event") == "crashed")
    newest = next((each for each in died if each["cause"] not in causes.OF_WORKERS), {})
    policy, _ = plugin.policies.get(newest.get("task", ""), (None, False))
    return {
        "last_death": newest,
        "deaths_allowed": policy.max_crashes if policy else plugin.settings.max_crashes,
    }


def _last_end(queries: Views, now: float) -> float | None:
    """Return when the last task ended, if that was in the last hour."""
    ended = queries.journal(count=1, wanted=lambda entry: entry["event"] == Event.FINISHED, since=now - 3600)
    return int(ended[0]["at"].partition("-")[0]) / 1000 if ended else None


def lost_workers(incidents: Sequence[Incident], workers: Sequence[WorkerRecord], now: float) -> list[Lost]:
    """Return the workers that are lost and have not come back, newest first; the dead for a day."""
    lost = [*_frozen_or_silent(workers)]
    back = {worker.node for worker in workers}
    for incident in incidents:
        node, since = incident.worker.partition("/")[0], incident.died_at
        if node not in back and now - (since or 0.0) < _MISSED_FOR:
            lost.append(Lost(worker=incident.worker, how="dead", since=since, incident=incident.incident))
        back.add(node)
    return sorted(lost, key=lambda each: each.since or 0.0, reverse=True)


def _frozen_or_silent(workers: Sequence[WorkerRecord]) -> Iterator[Lost]:
    for worker in workers:
        if worker.frozen_since is not None:
            yield Lost(worker=worker.worker, how="frozen", since=worker.frozen_since)
        elif not worker.alive:
            yield Lost(worker=worker.worker, how="silent", since=worker.last_beat)


def _in_force(ledger: Ledger) -> dict[str, Any]:
    """Return how many rules block, and Redis' clock as they were read, by the names of fields."""
    _, raw, now = policies.read(ledger, ledger.keys.blocks)
    return {"at": now, "blocked": len(read_rules(raw, now)[0])}


def last_ended(queries: Views, of: Callable[[str], bool] = lambda node: True) -> str:
    """Return which worker has ended or died last, and when; empty where none has.

    Args:
        of: whether a node is meant, by its name.
    """
    for worker, at in queries.declared_dead().items():
        node = worker.partition("/")[0]
        if of(node) and not node.startswith("monitor@"):
            return f"{node} at {when(at / 1000)}"
    return ""


def process_deaths(counts: Mapping[str, int]) -> dict[str, int]:
    """Return cause -> task processes that died alone, out of the totals of the ledger."""
    died = ((name.partition(":"), number) for name, number in counts.items())
    found = {cause: number for (what, _, cause), number in died if what == "crashed"}
    return {cause: found[cause] for cause in sorted(found) if cause not in causes.OF_WORKERS}


def _misplaced(app: Celery, queries: Views, seen: Overview) -> Iterator[str]:
    """Yield why this is not the ledger that was meant."""
    try:
        signed = check_owner(app, queries)
    except ConfigurationError as error:
        yield str(error)
        return
    if not (signed or seen.workers or seen.journal):
        others = some_of(queries.neighbours())
        there = f"; this Redis has the namespaces {others}" if others else ""
        yield (
            f"no worker has used this ledger, or its Redis came back empty: {seen.ledger}, poison_namespace"
            f" {seen.namespace!r}{there}"
        )


def _faults(seen: Overview, settings: Settings) -> Iterator[str]:
    if seen.gate.closed:
        yield (
            f"the fleet gate is closed: {seen.gate.story} in a short time, so that only a death on trial"
            " convicts; it opens by itself, or by `celery poison gate lift`"
        )
    if (most := seen.memory["most"]) and seen.memory["used"] >= FULL * most:
        yield (
            f"Redis is {seen.memory['used'] / most:.0%} full ({mib(seen.memory['used'])} of {mib(most)}): at"
            " 100% no start is recorded; cure: discard and purge what may go, or raise its maxmemory"
        )
    yield from _worker_faults(seen)
    for stuck in seen.stranded.oldest[:_STUCK_NAMED]:
        which = f"{stuck.id} of queue {stuck.queue or '?'} since {when(stuck.since)} ({duration(stuck.age)})"
        yield f"stuck: {which}: {stuck.why}; cure: {stuck.cure}"
    if (more := seen.stranded.total - _STUCK_NAMED) > 0:
        yield f"stuck: {count_of(more, 'more message')}: {command('poison status --json')}"
    if wrong := missing_trial_worker(settings, seen.workers):
        yield "; ".join(wrong)
    if spooled := spooled_here(settings.spool_directory):
        yield f"{spooled}: a worker on this machine brings them there as soon as Redis takes them"


def _worker_faults(seen: Overview) -> Iterator[str]:
    if not seen.alive:
        ended = f" (the last one ended: {seen.last_worker})" if seen.last_worker else ""
        yield (
            f"no worker is alive{ended}: nothing runs, and messages of dead workers wait; cure:"
            f" {command('worker')}"
        )
    elif not seen.monitor:
        yield "no worker holds the monitor's lock: dead workers are not noticed at this moment"
    forgotten = [worker.forgotten_at for worker in seen.workers if worker.forgotten_at]
    if forgotten and seen.at - max(forgotten) < OLD_NEWS:
        yield (
            f"Redis came back empty, or with old data, at {when(max(forgotten))}: quarantine and counts from"
            " before may be lost"
        )
    for worker in seen.workers:
        if worker.trouble:
            yield worker.trouble
        elif not worker.alive:
            yield f"worker {worker.worker} is silent"
    yield from (deaf.story for deaf in seen.deaf)
    if seen.unguarded:
        yield f"{seen.unguarded} tasks ran unguarded: their starts or ends did not reach the ledger safely"
    if seen.ledger_errors:
        yield f"workers counted {seen.ledger_errors} errors of the ledger; their logs say which"


def _server(client: redis.Redis) -> tuple[list[str], list[str]]:
    """Return the faults that make this Redis unfit, and the doubts about it."""
    try:
        return [], check_server(client)
    except ConfigurationError as error:
        return [str(error)], []


def _doubts(seen: Overview, settings: Settings) -> Iterator[str]:
    for dead, incident in seen.open_incidents.items():
        yield f"worker {dead} died and its messages are still being put back (incident {incident})"
    if seen.stranded.unread:
        yield seen.stranded.unread
    yield from (worker.filled for worker in seen.workers if worker.filled)
    yield from filter(None, (worker.idle_story for worker in seen.workers))
    yield from filter(None, (each.warning for each in seen.queues))
    yield from _nearly_full(seen.memory, settings)


def _nearly_full(memory: Mapping[str, int], settings: Settings) -> Iterator[str]:
    bounds = {"unprocessable": settings.keep_unprocessable_bytes, "parked": settings.park_bytes}
    for kind, limit in bounds.items():
        most = min(limit, int(SHARE * memory["most"])) if memory["most"] else limit
        if memory[kind] >= NEAR * most:
            name = "poison_park_bytes" if kind == "parked" else "poison_keep_unprocessable_bytes"
            yield f"{kind} messages take {mib(memory[kind])} of the {mib(most)} that they may: see {name}"


def mib(size: int) -> str:
    """Return a number of bytes in MiB."""
    return f"{size / (1 << 20):,.0f} MiB"


def missing_trial_worker(settings: Settings, workers: list[WorkerRecord]) -> tuple[str, str] | None:
    """Return the fault of a trial queue that no worker serves, and its cure; None if all is well."""
    queue = settings.trial_queue
    if settings.trial != "queue" or settings.observe_only:
        return None
    if any(w.alive and not w.stopping and queue in w.consumed for w in workers):
        return None
    said = f"poison_trial='queue', and no live worker consumes {queue!r}: suspects wait there and do not run"
    return said, f"start `{command(f'worker -Q {shlex.quote(queue)} -c 1')}`"
