"""``pipeline ingest``: told on stderr batch by batch, and summed up on stdout."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from celery_poison.errors import ConfigurationError
from celery_poison.pipeline.ingest.ingest import Batch, Ingest, Ingested
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.telling import told_gap

HELP = """Bring the journal into the lake, each entry once, whatever kills this command on the way.

\b
celery -A proj poison pipeline ingest --lake /data/poison                     once, from cron
celery -A proj poison pipeline ingest --lake /data/poison --follow            as a daemon
celery -A proj poison pipeline ingest --lake /data/poison --trim-after 24     and keep Redis small
"""

OPTIONS = (
    click.Option(["--once/--follow"], default=True, help="Return when all is in the lake, or go on. [once]"),
    click.Option(
        ["--every"],
        type=click.FloatRange(0, min_open=True),
        default=5.0,
        show_default=True,
        help="Seconds between two batches of --follow.",
    ),
    click.Option(
        ["--trim-after"],
        type=click.FloatRange(0),
        metavar="HOURS",
        help="Drop from Redis what is safely in the lake and older; never, unless this is said.",
    ),
    click.Option(["--compact/--no-compact"], default=True, help="Put small files together. [yes]"),
    click.Option(
        ["--moved"],
        is_flag=True,
        help="The app's journal is another one from now on: its Redis was emptied, or its broker moved.",
    ),
    click.Option(
        ["--max-rows"],
        type=click.IntRange(1),
        default=1_000_000,
        show_default=True,
        help="About so many entries in one batch.",
    ),
)


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> Ingested:
    """Ingest, and say what was done; raises as :func:`ingest`."""
    done = ingest(session, lake, options)
    click.echo(json.dumps(asdict(done), indent=2) if options.get("as_json") else summary(done))
    return done


def ingest(session: Any, lake: Lake, options: Mapping[str, Any]) -> Ingested:
    """Ingest as the options say; raises what ``Ingest.once`` raises.

    Into a lake of no journal nothing is ingested, which is said.
    """
    if what := lake.of_no_journal():
        click.echo(f"{lake.root} holds {what}, no journal belongs to it: nothing is ingested", err=True)
        return Ingested()
    work = Ingest(
        lake,
        source_options(session, options),
        keep_hours=options.get("trim_after"),
        compacting=options.get("compact", True),
        moved=bool(options.get("moved")),
        progress=_progress,
    )
    return work.once() if options.get("once", True) else _follow(work, options.get("every", 5.0))


def summary(done: Ingested) -> str:
    """Return in one sentence what was done."""
    told = f"{done.rows} entries in {done.batches} new batches"
    if done.upto:
        told += f", the lake reaches up to {done.upto}"
    if done.trimmed:
        told += f"; {done.trimmed} trimmed from Redis"
    return told


def source_options(session: Any, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the data source's options out of the command's."""
    if not options.get("url"):
        raise ConfigurationError("which Redis? --redis redis://…, or celery -A proj poison pipeline …")
    found = {
        "url": options["url"],
        "namespace": options.get("namespace") or "poison",
        "master_name": options.get("master_name") or "",
        "app_name": options.get("app_name") or "",
        "max_rows": str(options.get("max_rows") or 1_000_000),
    }
    context = getattr(session, "sparkContext", None) if hasattr(session, "_jvm") else None
    if context is not None:
        found["partitions"] = str(max(2, int(context.defaultParallelism)))
    return found


def _follow(ingest: Ingest, seconds: float) -> Ingested:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return ingest.follow(stop.is_set, seconds)


def _progress(batch: Batch) -> None:
    click.echo(f"version {batch.version}: {batch.rows} entries up to {batch.upto}", err=True)
    for gap in batch.gaps:
        click.echo(told_gap(gap), err=True)
