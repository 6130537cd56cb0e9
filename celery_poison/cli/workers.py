"""``celery poison workers`` and ``celery poison incidents``: who is alive, and who died."""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_poison.cli.output import duration, json_option, print_json, print_table, when
from celery_poison.cli.session import app_of, open_quarantine, plainly
from celery_poison.model import Incident, WorkerRecord
from celery_poison.plugin import plugin_of


@click.command(cls=CeleryCommand)
@json_option
@click.pass_context
@handle_preload_options
@plainly
def workers(ctx: click.Context, as_json: bool, **kwargs: Any) -> None:
    """List the workers that guard messages, the longest silent first.

    NOTICED BY says how soon its death would be noticed: by its connection in about a second, or by its
    heartbeat after poison_activation_interval. UNGUARDED counts tasks whose start or end never reached the
    ledger, ERRORS what went wrong with it.

    \b
    celery -A proj poison workers
    celery -A proj poison workers --json | jq '.[] | select(.alive | not)'
    """
    queries = open_quarantine(ctx).queries
    found = queries.workers(int(plugin_of(app_of(ctx)).settings.activation_interval * 1000))
    if as_json:
        print_json([worker.as_dict() for worker in found])
    elif found:
        now = queries.now_ms() / 1000
        headings = (
            "WORKER",
            "STATE",
            "BEAT",
            "PID",
            "POOL",
            "SLOTS",
            "QUEUES",
            "UNGUARDED",
            "ERRORS",
            "NOTICED BY",
            "STARTED",
        )
        print_table(headings, (_worker_row(worker, now) for worker in found))
    else:
        click.echo("no worker has reported", err=True)


def _worker_row(worker: WorkerRecord, now: float) -> tuple[object, ...]:
    state = "silent" if not worker.alive else "stopping" if worker.stopping else "alive"
    return (
        worker.worker,
        state,
        f"{duration(now - (worker.last_beat or now))} ago",
        worker.pid,
        worker.pool or "-",
        worker.concurrency,
        worker.queues or "-",
        worker.unguarded,
        worker.ledger_errors,
        worker.noticed_by,
        when(worker.started_at),
    )


@click.command(cls=CeleryCommand)
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True, help="At most so many.")
@json_option
@click.pass_context
@handle_preload_options
@plainly
def incidents(ctx: click.Context, limit: int, as_json: bool, **kwargs: Any) -> None:
    """List the deaths of whole workers, newest first.

    NOTICED says how: gone (all its connections broke), silent (no heartbeat), frozen (connected, and no
    heartbeat). TOOK is the time from the death to the end of the recovery. FLAGGED counts messages that were
    running and became candidates, PUT BACK what the worker held and where it went; RabbitMQ puts back by
    itself, so that nothing is counted there.

    \b
    celery -A proj poison incidents
    celery -A proj poison incidents --json | jq '.[] | {worker, how, took, returned}'
    celery -A proj poison list --filter incident=3f2a9c0d11ee
    """
    found = open_quarantine(ctx).queries.incidents(limit)
    if as_json:
        print_json([incident.as_dict() for incident in found])
    elif found:
        headings = ("INCIDENT", "DIED", "NOTICED", "TOOK", "CAUSE", "FLAGGED", "PUT BACK", "WORKER")
        print_table(headings, map(_incident_row, found))
    else:
        click.echo("no worker has died", err=True)


def _incident_row(incident: Incident) -> tuple[object, ...]:
    return (
        incident.incident,
        when(incident.died_at),
        incident.how or "-",
        f"{incident.took:.1f} s" if incident.took is not None else "open",
        incident.cause,
        incident.flagged,
        ", ".join(f"{queue}: {count}" for queue, count in incident.returned.items()) or incident.put_back,
        incident.worker,
    )
