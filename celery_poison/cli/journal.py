"""``celery poison journal tail|export``: the transitions of all messages and workers."""

from __future__ import annotations

import json
import re
from typing import IO, Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_poison.cli.output import clean, print_json_line
from celery_poison.cli.session import open_quarantine, plainly
from celery_poison.ledger.journal import Extent
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


def _id(ctx: click.Context, option: click.Parameter, value: str) -> str:
    if value and not re.fullmatch(r"\d+-\d+", value):
        raise click.BadParameter("use the id of an entry, as 1700000000000-0")
    return value


@journal.command(cls=CeleryCommand)
@click.option("--after", callback=_id, default="", metavar="ID", help="Only what came after this entry.")
@click.option("--output", type=click.File("w", encoding="utf-8"), default="-", help="A file, not stdout.")
@click.pass_context
@handle_preload_options
@plainly
def export(ctx: click.Context, after: str, output: IO[str], **kwargs: Any) -> None:
    """Write all entries up to now, oldest first: one JSON object in each line.

    How many there were, where to go on next time, and what had been trimmed before is told on stderr.

    \b
    celery -A proj poison journal export --output journal.jsonl
    celery -A proj poison journal export --after 1700000000000-0 >> journal.jsonl
    """
    reach, entries = open_quarantine(ctx).journal(after=after)
    count, last = 0, after
    for entry in entries:
        output.write(json.dumps(entry) + "\n")
        count, last = count + 1, entry["at"]
    click.echo(f"{count} entries written" + (f"; go on with --after {last}" if last else ""), err=True)
    for gap in _gaps(reach, after, count):
        click.echo(f"warning: {gap}", err=True)


def _gaps(reach: Extent, after: str, count: int) -> list[str]:
    cure = "export more often, or raise poison_journal_maxlen"
    gaps = []
    if reach.may_lack(after):
        gaps.append(f"entries after {after} may have been trimmed already: {cure}")
    elif not after and reach.trimmed:
        gaps.append(f"{reach.trimmed} older entries had been trimmed already: {cure}")
    if not after and count < reach.length:
        gaps.append(f"{reach.length - count} entries were trimmed during the export: {cure}")
    return gaps
