"""``celery poison workers`` and ``celery poison incidents``: who is alive, and who died."""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_poison.cli.output import duration, json_option, print_json, print_table, when
from celery_poison.cli.session import app_of, open_quarantine, plainly
from celery_poison.plugin import plugin_of
from celery_poison.records import Incident, WorkerRecord


@click.command(cls=CeleryCommand)
@json_option
@click.pass_context
@handle_preload_options
@plainly
def workers(ctx: click.Context, as_json: bool, **kwargs: Any) -> None:
    """List the workers that guard messages, the longest silent first.

    UNGUARDED counts tasks whose start or end never reached the ledger, ERRORS what went wrong with it.

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

    FLAGGED counts messages that were running and became candidates, PUT BACK all that the worker held.

    \b
    celery -A proj poison incidents
    celery -A proj poison list --filter incident=3f2a9c0d11ee
    """
    found = open_quarantine(ctx).queries.incidents(limit)
    if as_json:
        print_json([incident.as_dict() for incident in found])
    elif found:
        headings = ("INCIDENT", "NOTICED", "STATE", "CAUSE", "FLAGGED", "PUT BACK", "WORKER", "QUEUES")
        print_table(headings, map(_incident_row, found))
    else:
        click.echo("no worker has died", err=True)


def _incident_row(incident: Incident) -> tuple[object, ...]:
    return (
        incident.incident,
        when(incident.noticed_at),
        "closed" if incident.finished_at else "open",
        incident.cause,
        incident.flagged,
        incident.put_back,
        incident.worker,
        incident.queues or "-",
    )
