"""``celery poison list``: messages in quarantine, or in another state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_poison.cli.output import duration, json_option, print_json, print_table, when
from celery_poison.cli.session import open_quarantine, plainly
from celery_poison.model import MessageRecord
from celery_poison.quarantine.filters import Filter

#: Rows of a table, where nobody says how many; JSON has no such limit.
ROWS = 50

filter_option = click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="CONDITIONS",
    help="Only messages for which all conditions hold, e.g. 'task=shop.* cause=signal:9 age>2h'.",
)


@click.command(name="list", cls=CeleryCommand)
@click.option(
    "--state",
    type=click.Choice(["NDLV", "FAIL", "TBDL", "DLNG"], case_sensitive=False),
    default="NDLV",
    metavar="[NDLV|FAIL|DLNG|TBDL]",
    help="NDLV in quarantine (default), FAIL given up, DLNG running, TBDL waiting with a history.",
)
@click.option("--candidates", is_flag=True, help="Messages flagged as candidates instead.")
@filter_option
@click.option("--limit", type=click.IntRange(1), help=f"At most so many; default {ROWS}, with --json all.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Skip so many first.")
@json_option
@click.pass_context
@handle_preload_options
@plainly
def list_(
    ctx: click.Context,
    state: str,
    candidates: bool,
    filters: Sequence[str],
    limit: int | None,
    offset: int,
    as_json: bool,
    **kwargs: Any,
) -> None:
    """List messages, those in quarantine unless told otherwise, newest first.

    Text may use * and ?, numbers and ages (s, m, h, d) may be compared. Fields: id, mid, task, queue, group,
    cause, fingerprint, worker, incident, reason, deliveries, crashes, strikes, failures, payload_bytes, age.

    \b
    celery -A proj poison list
    celery -A proj poison list --filter 'task=shop.* age>2h'
    celery -A proj poison list --candidates
    celery -A proj poison list --state FAIL --limit 20 --json
    """
    where = Filter.parse(*filters) if filters else None
    shown = limit if as_json or limit else ROWS
    quarantine = open_quarantine(ctx)
    beyond = None if shown is None else shown + 1
    found = quarantine.list(state=state, candidates=candidates, where=where, limit=beyond, offset=offset)
    page = found[:shown]
    if as_json:
        print_json([record.as_dict() for record in page])
        return
    print_records(page, now=quarantine.queries.now_ms() / 1000)
    if len(found) > len(page):
        click.echo(f"there are more: --offset {offset + len(page)} shows the next", err=True)


def print_records(records: Sequence[MessageRecord], now: float) -> None:
    """Print messages as a table; ``now`` is the ledger's time in seconds."""
    headings = ("ID", "TASK", "QUEUE", "STATE", "CAUSE", "DEATHS", "FAILURES", "SINCE", "AGE")
    if not records:
        click.echo("nothing", err=True)
        return
    print_table(headings, (_row(record, now) for record in records))


def _row(record: MessageRecord, now: float) -> Sequence[object]:
    since = record.quarantined_at or record.first_seen or record.last_seen
    return (
        record.id,
        record.task,
        record.queue,
        record.state,
        record.cause or "-",
        record.crashes,
        record.failures,
        when(since),
        duration(now - since) if since else "-",
    )
