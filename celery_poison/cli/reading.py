"""``celery poison list | show | groups | journal``: what is kept, and what has happened."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import IO, Any

import click
from kombu.utils.json import dumps

from celery_poison.cli.output import ROWS, print_json, print_records, print_rows, print_table
from celery_poison.cli.session import json_option, open_quarantine, verb
from celery_poison.ledger.journal import Extent
from celery_poison.model import MessageRecord
from celery_poison.quarantine import story
from celery_poison.quarantine.body import decoded, preview
from celery_poison.quarantine.search import By, Filter, Group
from celery_poison.quarantine.story import Detail
from celery_poison.states import State
from celery_poison.text import clean, when

filter_option = click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="CONDITIONS",
    help="Only messages for which all conditions hold, e.g. 'task=shop.* cause=signal:9 age>2h'.",
)
limit_option = click.option(
    "--limit", type=click.IntRange(1), help=f"At most so many; default {ROWS}, with --json all."
)


# --- list --------------------------------------------------------------------------------------


@verb(
    click.option(
        "--state",
        type=click.Choice(["NDLV", "FAIL", "TBDL", "DLNG"], case_sensitive=False),
        default="NDLV",
        metavar="[NDLV|FAIL|DLNG|TBDL]",
        help="NDLV in quarantine (default), FAIL given up, DLNG running, TBDL waiting with a history.",
    ),
    click.option("--candidates", is_flag=True, help="Messages flagged as candidates instead."),
    filter_option,
    limit_option,
    click.option("--offset", type=click.IntRange(0), default=0, help="Skip so many first."),
    json_option,
    name="list",
)
def list_(
    ctx: click.Context,
    state: str,
    candidates: bool,
    filters: Sequence[str],
    limit: int | None,
    offset: int,
    as_json: bool,
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


# --- groups ------------------------------------------------------------------------------------


@verb(
    click.option(
        "--by",
        type=click.Choice([by.value for by in By], case_sensitive=False),
        default=By.FINGERPRINT.value,
        show_default=True,
        help="fingerprint: task, cause and arguments. cause: task and cause.",
    ),
    filter_option,
    limit_option,
    json_option,
)
def groups(ctx: click.Context, by: str, filters: Sequence[str], limit: int | None, as_json: bool) -> None:
    """Count what is in quarantine by task, cause and fingerprint, the largest group first.

    RELAPSED counts those that had been released before, and died again. A group's id may be given to release,
    fail and discard.

    \b
    celery -A proj poison groups
    celery -A proj poison groups --by cause
    celery -A proj poison release --group GROUP --dry-run
    """
    where = Filter.parse(*filters) if filters else None
    found = open_quarantine(ctx).groups(where=where, by=By(by))
    page = found[: limit if as_json or limit else ROWS]
    if as_json:
        print_json([group.as_dict() for group in page])
        return
    if not page:
        click.echo("nothing", err=True)
        return
    headings = ("GROUP", "MESSAGES", "TASK", "CAUSE", "FINGERPRINT", "RELAPSED", "FIRST SEEN", "LAST SEEN")
    print_table(headings, map(_group_row, page))
    if len(found) > len(page):
        click.echo(f"there are {len(found)} groups: --limit shows more of them", err=True)


def _group_row(group: Group) -> Sequence[object]:
    what = group.task, group.cause or "-", group.fingerprint or "-"
    return (group.group, group.count, *what, group.relapsed, when(group.first_seen), when(group.last_seen))


# --- show --------------------------------------------------------------------------------------


@verb(
    click.argument("id"),
    click.option("--raw", is_flag=True, help="Write the body to stdout, byte for byte as it was received."),
    json_option,
)
def show(ctx: click.Context, id: str, raw: bool, as_json: bool) -> None:
    """Tell a message's story: what happened, its history, headers and body.

    ID is a task id, or a mid where several messages carry one task id. The body is never unpickled.

    \b
    celery -A proj poison show 0b6d1a0c-4f0e-4d0a-9f5e-6c1f3a1f2b11
    celery -A proj poison show ID --json | jq .body
    celery -A proj poison show ID --raw > body.bin
    """
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")
    quarantine = open_quarantine(ctx)
    if raw:
        click.echo(quarantine.message(quarantine.get(id).mid).body, nl=False)
        return
    detail = quarantine.detail(id)
    if not as_json:
        _tell(ctx.obj, detail)
        return
    shown = detail.as_dict()
    if detail.stored is not None:
        shown["body"] = decoded(detail.stored)
        shown["body_base64"] = base64.b64encode(detail.stored.body).decode()
    print_json(shown)


def _tell(console: Any, detail: Detail) -> None:
    record, stored = detail.record, detail.stored
    title = console.style(clean(record.task), bold=True)
    console.echo(f"{title}  {clean(record.id)}\n{story.STANDING[record.state]} {story.why(record)}")
    _section(console, "record", [(name, value) for name, value in _facts(record) if value not in ("", "-")])
    _section(console, "stack", [("at", frame) for frame in record.evidence.stack])
    _section(console, "history", [(story.at(entry), story.sentence(entry)) for entry in detail.history])
    if stored is None:
        if record.state != State.DLVD:
            console.echo("\nThe message itself is with the broker: only quarantine keeps headers and body.")
        return
    for title, values in (("headers", stored.headers), ("properties", stored.properties)):
        _section(console, title, [(name, each) for name, each in sorted(values.items()) if each is not None])
    console.echo("\n" + console.style("body", bold=True))
    for line in preview(stored):
        console.echo(f"  {line}")


def _facts(record: MessageRecord) -> list[tuple[str, object]]:
    died = f"start {record.deliveries}, process {record.pid}, after {record.runtime_ms / 1000:g} s"
    counted = f"{record.deliveries} deliveries, {record.crashes} deaths, {record.strikes} strikes,"
    return [
        ("mid", record.mid),
        ("state", record.state),
        ("queue", record.queue),
        ("cause", record.cause),
        ("last death", died if record.pid else ""),
        ("counts", f"{counted} {record.failures} failures, {record.releases} releases"),
        ("worker", record.worker),
        ("incident", record.incident),
        ("fingerprint", record.fingerprint),
        ("first seen", when(record.first_seen)),
        ("quarantined", when(record.quarantined_at)),
        ("last seen", when(record.last_seen)),
    ]


def _section(console: Any, title: str, rows: list[tuple[str, object]]) -> None:
    if rows:
        console.echo("\n" + console.style(title, bold=True))
        print_rows([(name, value if isinstance(value, str) else dumps(value)) for name, value in rows], "  ")


# --- journal -----------------------------------------------------------------------------------


@click.group()
def journal() -> None:
    """Read the journal: one entry for each transition of a message, see docs/journal.md."""


@verb(
    click.option(
        "-n", "--lines", type=click.IntRange(1), default=20, show_default=True, help="Newest so many."
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON object in each line, and nothing else."),
    group=journal,
)
def tail(ctx: click.Context, lines: int, as_json: bool) -> None:
    """Print the newest entries, the newest last.

    \b
    celery -A proj poison journal tail -n 100
    celery -A proj poison journal tail -n 1000 --json | jq 'select(.event == "crashed")'
    """
    for entry in open_quarantine(ctx).queries.journal(count=lines):
        if as_json:
            click.echo(dumps(entry))
        else:
            whom = clean(f"{entry['task']}[{entry['id']}] ") if entry["id"] else ""
            ctx.obj.echo(f"{story.at(entry)}  {whom}{story.sentence(entry)}")


def _entry_id(ctx: click.Context, option: click.Parameter, value: str) -> str:
    if value and not re.fullmatch(r"\d+-\d+", value):
        raise click.BadParameter("use the id of an entry, as 1700000000000-0")
    return value


@verb(
    click.option(
        "--after", callback=_entry_id, default="", metavar="ID", help="Only what came after this entry."
    ),
    click.option("--output", type=click.File("w", encoding="utf-8"), default="-", help="A file, not stdout."),
    group=journal,
)
def export(ctx: click.Context, after: str, output: IO[str]) -> None:
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
        click.echo(f"warning: {gap}: export more often, or raise poison_journal_maxlen", err=True)


def _gaps(reach: Extent, after: str, count: int) -> list[str]:
    gaps = []
    if reach.may_lack(after):
        gaps.append(f"entries after {after} may have been trimmed already")
    elif not after and reach.trimmed:
        gaps.append(f"{reach.trimmed} older entries had been trimmed already")
    if not after and count < reach.length:
        gaps.append(f"{reach.length - count} entries were trimmed during the export")
    return gaps
