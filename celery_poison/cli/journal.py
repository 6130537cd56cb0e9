"""``celery poison journal tail``: the newest transitions of all messages and workers."""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_poison.cli.output import clean, print_json_line
from celery_poison.cli.session import open_quarantine, plainly
from celery_poison.quarantine import story


@click.group()
def journal() -> None:
    """Read the journal: one entry for each transition of a message, see docs/journal.md."""


@journal.command(cls=CeleryCommand)
@click.option("-n", "--lines", type=click.IntRange(1), default=20, show_default=True, help="Newest so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line, and nothing else.")
@click.pass_context
@handle_preload_options
@plainly
def tail(ctx: click.Context, lines: int, as_json: bool, **kwargs: Any) -> None:
    """Print the newest entries, the newest last.

    \b
    celery -A proj poison journal tail -n 100
    celery -A proj poison journal tail -n 1000 --json | jq 'select(.event == "crashed")'
    """
    for entry in open_quarantine(ctx).queries.journal(count=lines):
        if as_json:
            print_json_line(entry)
        else:
            whom = clean(f"{entry['task']}[{entry['id']}] ") if entry["id"] else ""
            ctx.obj.echo(f"{story.at(entry)}  {whom}{story.sentence(entry)}")
