"""``celery poison list | show | groups | journal``: what is kept, and what has happened."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import IO, Any

import click
from celery import Celery
from kombu.utils.json import dumps

from celery_poison import causes
from celery_poison.basics.text import (
    argument,
    clean,
    clock,
    command,
    count_of,
    duration,
    near_paths,
    short,
    utc,
)
from celery_poison.cli.next_acts import acts_on, decision
from celery_poison.cli.output import (
    ROWS,
    answer_records,
    answer_table,
    print_json,
    print_rows,
    print_wrapped,
    private_file,
    say,
    wants_json,
)
from celery_poison.cli.session import (
    app_of,
    filter_options,
    json_option,
    open_quarantine,
    utc_option,
    verb,
)
from celery_poison.ledger.journal import Extent
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.plugin import plugin_of
from celery_poison.quarantine import Quarantine, story
from celery_poison.quarantine.arguments import redacted
from celery_poison.quarantine.body import BodyBroken, BodyRefused, decoded, preview
from celery_poison.quarantine.failing import canvas_in
from celery_poison.quarantine.search import By, Filter, Group
from celery_poison.quarantine.story import Detail
from celery_poison.states import State, kept_state

limit_option = click.option(
    "--limit", type=click.IntRange(1), help=f"At most so many; default {ROWS}, with --json all."
)


def _state(ctx: click.Context, parameter: click.Parameter, typed: str) -> State:
    try:
        return kept_state(typed)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong)) from None


# --- list --------------------------------------------------------------------------------------


@verb(
    click.option(
        "--state",
        callback=_state,
        default="NDLV",
        metavar="[NDLV|FAIL|DLNG|TBDL]",
        help="NDLV in quarantine (default), FAIL given up, DLNG running, TBDL waiting with a history.",
    ),
    click.option("--candidates", is_flag=True, help="Messages flagged as candidates instead."),
    *filter_options,
    limit_option,
    click.option("--offset", type=click.IntRange(0), default=0, help="Skip so many first."),
    json_option,
    name="list",
)
def list_(
    ctx: click.Context,
    state: State,
    candidates: bool,
    filters: Sequence[str],
    limit: int | None,
    offset: int,
) -> None:
    """List messages, newest first; by default those in quarantine.

    Fields of --filter: id, mid, task, queue, group, cause, arguments, fingerprint, worker, incident, reason
    (text, with * and ?); deliveries, deaths (crashes), strikes, failures, payload_bytes, releases_left,
    age (numbers; ages in s, m, h, d).

    \b
    celery -A proj poison list
    celery -A proj poison list --filter 'task=shop.* age>2h'
    celery -A proj poison list --state FAIL --limit 20 --json
    """
    where = Filter.parse(*filters) if filters else None
    shown = limit if wants_json() or limit else ROWS
    quarantine = open_quarantine(ctx)
    beyond = None if shown is None else shown + 1
    found = quarantine.list(state=state, candidates=candidates, where=where, limit=beyond, offset=offset)
    page = found[:shown]
    what = "candidates" if candidates else f"messages in state {state}" if state is not State.NDLV else ""
    empty = "" if page else _nothing(quarantine, what or "messages in quarantine", filters)
    title = f"{count_of(len(page), 'message')}{' shown' if len(found) > len(page) else ''}"
    title += f" {_LISTED[state]}, the newest first" if not candidates else " flagged as candidates"
    shown_id = argument(short(page[0].id)) if page else ""
    hint = f"next: {command(f'poison show {shown_id}')}"
    answer_records(page, quarantine.queries.now_ms() / 1000, empty, title=title, hint=hint)
    if len(found) > len(page) and not wants_json():
        click.echo(f"there are more: --offset {offset + len(page)} shows the next", err=True)


#: State -> where listed messages are, in the line above them.
_LISTED = {
    State.NDLV: "in quarantine",
    State.FAIL: "given up",
    State.DLNG: "running",
    State.TBDL: "waiting, with a history",
}


def _nothing(quarantine: Quarantine, what: str, filters: Sequence[str]) -> str:
    """Return what is said where nothing was found; a ledger that nobody uses is a likely reason."""
    if not quarantine.check_owner():
        return f"nothing: no worker has used this ledger so far; see {command('poison status')}"
    if filters:
        return f"no {what} match {' '.join(filters)!r}; without --filter there may be others"
    return f"no {what}"


# --- groups ------------------------------------------------------------------------------------


@verb(
    click.option(
        "--by",
        type=click.Choice([by.value for by in By], case_sensitive=False),
        default=By.CAUSE.value,
        show_default=True,
        help="cause: task and cause. fingerprint: task, cause and arguments.",
    ),
    *filter_options,
    limit_option,
    json_option,
)
def groups(ctx: click.Context, by: str, filters: Sequence[str], limit: int | None) -> None:
    """Count messages in quarantine by cause and task, the largest group first.

    Kept failures (poison_keep_failures) also differ by their exception. RELAPSED counts messages that were
    released and came back. Release, fail and discard take a group's id.

    \b
    celery -A proj poison groups
    celery -A proj poison release --group GROUP --dry-run
    """
    where = Filter.parse(*filters) if filters else Filter()
    quarantine = open_quarantine(ctx)
    page, total = quarantine.finder.groups(where, By(by), limit or (0 if wants_json() else ROWS))
    now = quarantine.queries.now_ms() / 1000
    fine = by == By.FINGERPRINT
    headings = ["CAUSE", "TASK", "MESSAGES", "RELAPSED", "OLDEST", "NEWEST", "GROUP"]
    if fine:
        headings.insert(6, "FINGERPRINT")

    raised = {id: f"{causes.FAILURE}: {name}" for id, name in quarantine.finder.raised(page).items()}

    def row(group: Group) -> Sequence[object]:
        cells = [
            raised.get(group.group) or causes.short(group.cause) or "-",
            group.task,
            group.count,
            group.relapsed,
        ]
        cells += [duration(now - group.first_seen), duration(now - group.last_seen)]
        return [*cells, group.fingerprint or "-", group.group] if fine else [*cells, group.group]

    empty = "" if page else _nothing(quarantine, "messages in quarantine", filters)
    whole = sum(group.count for group in page)
    title = f"{count_of(whole, 'message')} in quarantine, in {count_of(len(page), 'group')}"
    hint = f"next: {command(f'poison list --filter group={page[0].group}')}" if page else ""
    answer_table(page, headings, row, empty, fit=True, title=title, hint=hint)
    if total > len(page) and not wants_json():
        click.echo(f"there are {total} groups: --limit shows more of them", err=True)


# --- show --------------------------------------------------------------------------------------


@verb(
    click.argument("id"),
    click.option("--raw", is_flag=True, help="Write the body to stdout, byte for byte as it was received."),
    utc_option,
    json_option,
)
def show(ctx: click.Context, id: str, raw: bool) -> None:
    """Show one message: where it died, its arguments, the next command, and all that is on record.

    ID is a task id, or a mid where several messages carry one task id. Nothing is unpickled: a body that is
    not JSON is shown as bytes. The text hides arguments that poison_redact names; --json and --raw do not.

    \b
    celery -A proj poison show 0b6d1a0c-4f0e-4d0a-9f5e-6c1f3a1f2b11
    celery -A proj poison show ID --json | jq .body
    celery -A proj poison show ID --raw > body.bin
    """
    if raw and wants_json():
        raise click.UsageError("--raw and --json exclude each other")
    quarantine = open_quarantine(ctx)
    if raw:
        click.echo(quarantine.message(quarantine.get(id).mid).body, nl=False)
        return
    detail = quarantine.detail(id)
    if wants_json():
        print_json(whole(detail))
    else:
        _tell(ctx.obj, app_of(ctx), detail)


def whole(detail: Detail) -> dict[str, Any]:
    """Return what ``show --json`` prints, the body included."""
    shown = detail.as_dict()
    if detail.stored is not None:
        shown["body"] = decoded(detail.stored)
        shown["body_base64"] = base64.b64encode(detail.stored.body).decode()
    return shown


def _tell(console: Any, app: Celery, detail: Detail) -> None:
    record, stored = detail.record, detail.stored
    source = near_paths(record.evidence.source)
    where = f"{causes.short(record.cause)}{f' in {source}' if source else ''}" if record.cause else ""
    title = console.style(clean(record.task), bold=True)
    console.echo(f"{title}[{clean(record.id)}]" + (f"  {clean(where)}" if where else ""))
    if record.arguments:
        console.echo(f"arguments: {clean(record.arguments)}")
    print_wrapped(near_paths(f"{story.STANDING[record.state]} {detail.story}"), "", 0)
    if told := _waits(stored):
        print_wrapped(told, "", 0)
    acts = acts_on(record, observe_only=detail.observe_only)
    _section(console, "next", acts)
    _section(console, "record", [(name, value) for name, value in _facts(record) if value not in ("", "-")])
    for title, rows in story.failure_rows(detail.failure):
        _section(console, title, [(name, near_paths(text)) for name, text in rows])
    _section(console, "stack", [("at", near_paths(frame)) for frame in record.evidence.stack])
    _history(console, detail.history)
    if stored is not None:
        _message(console, app, record.task, stored)
    elif record.state == State.FAIL:
        console.echo("\nThe message itself is gone for good: it was purged.")
    elif record.state != State.DLVD:
        console.echo("\nThe message itself is with the broker: only quarantine keeps headers and body.")
    usual = decision(record) if record.state == State.NDLV and not record.sent_at else ""
    if usual or acts:
        say(f"usually: {usual}" if usual else f"next: {acts[0][0]}", err=True)


def _waits(stored: StoredMessage | None) -> str:
    """Return which chord waits for a message, as far as its body can be read here; else the empty string."""
    with suppress(BodyBroken, BodyRefused, ValueError, TypeError, AttributeError):
        if stored is not None and isinstance(chord := canvas_in(stored).get("chord"), dict):
            return f"A chord waits for it: {chord.get('task')}."
    return ""


def _history(console: Any, history: Sequence[story.Entry]) -> None:
    if history:
        console.echo("\n" + console.style("history", bold=True))
    for entry in history:
        at = f"  {clock(int(entry['at'].partition('-')[0]) / 1000)}  "
        print_wrapped(near_paths(story.sentence(entry)), at, len(at))


def _message(console: Any, app: Celery, task: str, stored: StoredMessage) -> None:
    """Print headers, properties and body of a message that lies in the ledger."""
    # These repeat the arguments, with what is hidden of them.
    headers = {
        name: value for name, value in stored.headers.items() if name not in ("argsrepr", "kwargsrepr")
    }
    for title, values in (("headers", headers), ("properties", stored.properties)):
        _section(console, title, [(name, each) for name, each in sorted(values.items()) if each is not None])
    console.echo("\n" + console.style("body", bold=True))
    redact = plugin_of(app).settings.redact
    for line in preview(stored, lambda value: redacted(app, redact, task, value)):
        console.echo(f"  {line}")


def _facts(record: MessageRecord) -> list[tuple[str, object]]:
    least = "at least " if record.incident and record.cause in causes.OF_WORKERS else ""
    died = f"start {record.deliveries}, process {record.pid}, after {least}{record.runtime_ms / 1000:g} s"
    counted = f"{record.deliveries} deliveries, {record.crashes} deaths, {record.strikes} strikes,"
    return [
        ("mid", record.mid),
        ("state", record.state),
        ("queue", record.queue),
        ("destination", record.destination),
        ("sent there", clock(record.sent_at)),
        ("goes back", clock(record.retry_at)),
        ("releases left", record.releases_left or ""),
        ("cause", record.cause),
        ("last death", died if record.pid else ""),
        ("counts", f"{counted} {record.failures} failures, {record.releases} releases"),
        ("worker", record.worker),
        ("incident", record.incident),
        ("fingerprint", record.fingerprint),
        ("first seen", clock(record.first_seen)),
        ("quarantined", clock(record.quarantined_at)),
        ("last change", clock(record.last_seen)),
    ]


def _section(console: Any, title: str, rows: Sequence[tuple[str, object]]) -> None:
    if rows:
        console.echo("\n" + console.style(title, bold=True))
        print_rows([(name, value if isinstance(value, str) else dumps(value)) for name, value in rows], "  ")


# --- journal -----------------------------------------------------------------------------------


@click.group()
def journal() -> None:
    """Read the journal: one entry for each transition of a message, see docs/journal.md.

    \b
    celery -A proj poison journal tail --follow
    """


@verb(
    click.option(
        "-n", "--lines", type=click.IntRange(1), default=20, show_default=True, help="Number of entries."
    ),
    click.option("-f", "--follow", is_flag=True, help="Go on with new ones, until Ctrl-C."),
    utc_option,
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line."),
    group=journal,
)
def tail(ctx: click.Context, lines: int, follow: bool) -> None:
    """Print the newest entries, the newest last: when, which task and message, and what happened.

    \b
    celery -A proj poison journal tail -n 100
    celery -A proj poison journal tail -n 1000 --json | jq 'select(.event == "crashed")'
    """
    quarantine = open_quarantine(ctx)
    last = "0-0"
    newest = quarantine.queries.journal(count=lines)
    entries: Iterable[dict[str, str]] = newest
    if not wants_json():
        click.echo(_newest(newest), err=True)
    while True:
        for entry in entries:
            last = entry["at"]
            if wants_json():
                click.echo(dumps(entry))
            else:
                _print_entry(entry)
        if not follow:
            break
        time.sleep(_PAUSE)
        _, entries = quarantine.journal(after=last)
    named = [entry["id"] for entry in newest if entry["id"]]
    if named and not wants_json():
        click.echo(f"next: {command(f'poison show {argument(short(named[-1]))}')}", err=True)


#: Seconds between two looks for new entries.
_PAUSE = 0.5


def _newest(entries: Sequence[dict[str, str]]) -> str:
    if not entries:
        return "the journal is empty: nothing has happened so far"
    zone = "UTC" if utc.get() else time.strftime("%Z")
    entry = "entry" if len(entries) == 1 else "entries"
    return f"the newest {len(entries)} {entry} of the journal, since {story.at(entries[0])}; times in {zone}"


def _print_entry(entry: dict[str, str]) -> None:
    """Print one entry as a paragraph; the whole names of worker and message only with --utc."""
    at, id = clock(int(entry["at"].partition("-")[0]) / 1000), entry["id"]
    if not utc.get():
        entry = {**entry, "worker": entry["worker"].partition("/")[0]}
        id = short(id)
    whom = f"{entry['task']}[{id}] " if id else ""
    indent = max(_MOMENT, len(at) + 2)
    print_wrapped(near_paths(f"{whom}{story.sentence(entry)}"), f"{at:<{indent}}", indent)


#: Columns of the time of an entry.
_MOMENT = 14


def _entry_id(ctx: click.Context, option: click.Parameter, value: str) -> str:
    if value and not re.fullmatch(r"\d+-\d+", value):
        raise click.BadParameter("use the id of an entry, as 1700000000000-0")
    return value


@verb(
    click.option(
        "--after", callback=_entry_id, default="", metavar="ID", help="Only entries after this one."
    ),
    click.option(
        "--output", callback=private_file, metavar="FILE", default="-", help="A file instead of stdout."
    ),
    group=journal,
)
def export(ctx: click.Context, after: str, output: IO[str]) -> None:
    """Write all entries up to now, oldest first: one JSON object a line.

    On stderr: the number of entries, the --after for next time, and how many had been trimmed before.

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
