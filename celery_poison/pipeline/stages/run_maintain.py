"""``pipeline maintain``: keep a lake small, forget what must be forgotten, go back to an older version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from celery_poison.errors import ConfigurationError
from celery_poison.pipeline import maintain
from celery_poison.pipeline.derived import JUDGED, STORED
from celery_poison.pipeline.lake import Lake, Table

HELP = """Put small files together, and delete what no reader needs any more. Needs no Spark.

\b
pipeline maintain --lake /data/poison                              every day, from cron
pipeline maintain --lake /data/poison --keep-days 90               and drop older days
pipeline maintain --lake /data/poison --forget ID --keep-hours 0   remove all rows of a task id, for good
pipeline maintain --lake /data/poison --history                    versions of the journal
pipeline maintain --lake /data/poison --restore VERSION            make the journal what it was
pipeline maintain --lake NEW --take-over OLD                       bring in a lake of an older release

Ingest and readers may go on meanwhile, except with --keep-hours 0: then no reader may.
"""
OPTIONS = (
    click.Option(
        ["--keep-hours"],
        type=click.FloatRange(0),
        default=maintain.KEEP_HOURS,
        show_default=True,
        help="How long replaced files stay: longer than the longest reader takes.",
    ),
    click.Option(["--keep-days"], type=click.IntRange(1), help="Drop the rows of days before so many."),
    click.Option(["--forget"], multiple=True, metavar="ID", help="Remove all rows of a task id. [several]"),
    click.Option(["--restore"], type=click.IntRange(0), metavar="VERSION", help="Of the journal."),
    click.Option(
        ["--history"], is_flag=True, help="Print the newest versions of the journal, and do nothing."
    ),
    click.Option(
        ["--take-over"],
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="OLD",
        help="Bring the entries of a lake of an older release into this one, which must be new.",
    ),
)


def run_without_spark(options: Mapping[str, Any]) -> bool:
    """Do what is asked; nothing of it needs Spark."""
    if not options["lake"]:
        raise ConfigurationError("which lake? --lake DIRECTORY, or POISON_LAKE in the environment")
    lake = Lake(None, options["lake"], options.get("app_name") or "")
    told = _work(lake, options)
    if options.get("as_json"):
        click.echo(json.dumps(told, indent=2))
    else:
        rows = told.pop("history", None) or [told]
        click.echo("\n".join("  ".join(f"{key}: {value}" for key, value in row.items()) for row in rows))
    return True


def _work(lake: Lake, options: Mapping[str, Any]) -> dict[str, Any]:
    if options.get("take_over"):
        from celery_poison.pipeline.takeover import take_over

        return {"taken_over": take_over(lake, options["take_over"], options)}
    if options.get("history"):
        return {"history": maintain.history(lake.journal)}
    told: dict[str, Any] = {}
    if options.get("restore") is not None:
        maintain.restore(lake, options["restore"])
        return {"restored": options["restore"], "version": lake.journal.version}
    tables = _tables(lake)
    if options.get("forget"):
        told["forgotten"] = maintain.forget(lake, tables, list(options["forget"]))
    if options.get("keep_days"):
        told["dropped"] = sum(maintain.keep_days(table, options["keep_days"]) for table in tables)
    told["fewer_files"] = sum(maintain.compact(table, quietly=True) for table in tables)
    told["deleted_files"] = sum(maintain.vacuum(table, options["keep_hours"]) for table in tables)
    return told


def _tables(lake: Lake) -> list[Table]:
    """Return all tables of the lake that are there, the journal first."""
    lake.journal.delta  # noqa: B018 - says what is wrong where there is none
    found = [lake.journal]
    for app in lake.apps():
        one = Lake(None, lake.root, app)
        found += [one.table(name) for name in (*STORED, *JUDGED)]
    return [table for table in found if table.exists]
