"""``celery poison show``: all that is known about one message."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import click
from celery import Celery
from kombu.utils.json import dumps

from celery_poison import causes
from celery_poison.basics.text import argument, clean, clock, command, count_of, near_paths, short, size
from celery_poison.cli.command import app_of, json_option, open_quarantine, utc_option, verb
from celery_poison.cli.next_acts import acts_on
from celery_poison.cli.output import (
    is_terminal,
    print_json,
    print_rows,
    print_wrapped,
    say,
    terminal_width,
    wants_json,
)
from celery_poison.desk import Quarantine, sentences
from celery_poison.desk.advice import decision
from celery_poison.desk.chords import chord_of, has_expired_chord
from celery_poison.desk.edits import names_of
from celery_poison.desk.own_deaths import causes_of, place_of
from celery_poison.desk.reading import Detail
from celery_poison.errors import MessageNotFound
from celery_poison.keep.arguments import HIDDEN, redacted
from celery_poison.keep.body import decoded, preview
from celery_poison.keep.stored_message import EXPIRES, has_expired
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.plugin import plugin_of
from celery_poison.states import State

#: Causes in the first line, of the last deaths.
_CAUSES = 3


@verb(
    click.argument("id"),
    click.option("--all", "everything", is_flag=True, help="History, headers, body and all else."),
    click.option("--raw", is_flag=True, help="Write the body to stdout, byte for byte as it was received."),
    utc_option,
    json_option,
)
def show(ctx: click.Context, id: str, everything: bool, raw: bool) -> None:
    """Show one message: where it died, its arguments, what is usual, and the next command.

    ID is a task id, or a mid where several messages share one. Nothing is unpickled: a body that is not JSON
    is shown as bytes. poison_redact hides arguments in the text, not in --json and --raw.

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
    try:
        detail = quarantine.detail(id)
    except MessageNotFound as error:
        raise MessageNotFound(f"{error}{_as_worker(quarantine, id)}") from None
    if wants_json():
        print_json(whole(detail))
    else:
        _tell(ctx.obj, app_of(ctx), detail)
        if everything:
            _tell_all(ctx.obj, app_of(ctx), detail)
        else:
            say(f"the rest: {command(f'poison show --all {argument(short(detail.record.id))}')}", err=True)


def _as_worker(quarantine: Quarantine, id: str) -> str:
    """Return a command for where an id is no message, and is the name of a worker or of its death."""
    for each in quarantine.queries.incidents():
        if id in (each.worker, each.worker.partition("/")[0], each.incident):
            return f"; a worker of that name died: {command(f'poison incidents show {argument(id)}')}"
    return f"; for workers: {command('poison workers')}" if "@" in id else ""


def whole(detail: Detail) -> dict[str, Any]:
    """Return the object that ``show --json`` prints, the body included."""
    shown = detail.as_dict()
    if detail.stored is not None:
        shown["body"] = decoded(detail.stored)
        shown["body_base64"] = base64.b64encode(detail.stored.body).decode()
    return shown


def _tell(console: Any, app: Celery, detail: Detail) -> None:
    record, stored = detail.record, detail.stored
    where = near_paths(_what_and_where(detail))
    title = console.style(clean(record.task), bold=True)
    console.echo(f"{title}[{clean(record.id)}]" + (f"  {clean(where)}" if where else ""))
    if record.arguments:
        console.echo(f"arguments: {clean(record.arguments)}")
        if HIDDEN in record.arguments:
            typed = command(f"poison show --json {argument(short(record.id))}")
            who = "poison_redact, its publisher, or who does not know the task"
            console.echo(clean(f"  hidden by {who}; all of them: {typed}"))
    print_wrapped(near_paths(f"{sentences.standing(record)} {detail.story}"), "", 0)
    if waits := _waits(app, record, stored):
        print_wrapped(waits, "", 0)
    if record.state == State.NDLV and stored is not None and has_expired(stored.headers):
        print_wrapped(
            f"It expired at {clean(str(stored.headers[EXPIRES]))}; a release leaves that out.", "", 0
        )
    if detail.others is not None:
        print_wrapped(detail.others.sentence, "", 0)
    all_die = detail.others is not None and detail.others.all_die
    acts = acts_on(record, observe_only=detail.observe_only, all_die=all_die)
    usual = decision(detail) if record.state == State.NDLV and not record.sent_at else ""
    if usual:
        console.echo("")
        print_wrapped(f"Usually: {usual}.", "", 0)
    if acts:
        console.echo("\n" + console.style("next", bold=True))
        _print_acts([(_with_a_name(typed, app, record), what) for typed, what in acts])
    facts = (
        f"queue {record.queue}" if record.queue else "",
        size(record.payload_bytes) if record.payload_bytes else "",
        f"worker {record.worker.partition('/')[0]}" if record.worker else "",
        f"quarantined {clock(record.quarantined_at)}" if record.quarantined_at else "",
    )
    console.echo("")
    print_wrapped(", ".join(filter(None, (*facts, _counts(detail, "start", "death", "release")))), "", 0)
    for name, url in detail.links.items():
        console.echo(f"{name}: {url}")
    _tell_where_it_is(console, record, stored)


def _tell_where_it_is(console: Any, record: MessageRecord, stored: StoredMessage | None) -> None:
    """Print where a message is that quarantine does not keep."""
    if stored is None and record.state == State.FAIL:
        console.echo("The message itself is gone for good: it was purged.")
    elif stored is None and record.state != State.DLVD:
        where = "parked in the ledger" if sentences.is_parked(record) else "with the broker"
        console.echo(f"The message itself is {where}: headers and body are shown of what is in quarantine.")


def _what_and_where(detail: Detail) -> str:
    """Return the causes of its deaths in their order, and where its code was, or that this is not known."""
    record, deaths = detail.record, detail.deaths
    if not record.cause:
        return ""
    died_of = causes_of(deaths)
    if not died_of or died_of[-1] != record.cause:
        died_of = [record.cause]  # it is not in quarantine for its deaths, or the journal has lost them
    what = ", then ".join(map(causes.short, died_of[-_CAUSES:]))
    if place := place_of(deaths, record.evidence):
        return f"{what} in {place}"
    return f"{what}, no place" if record.cause == causes.OOM or record.cause.startswith("exit:") else what


def _tell_all(console: Any, app: Celery, detail: Detail) -> None:
    """Print what is on record beside the answer."""
    record, stored = detail.record, detail.stored
    _section(console, "record", [(name, value) for name, value in _facts(detail) if value not in ("", "-")])
    for title, rows in sentences.failure_rows(detail.failure):
        _section(console, title, [(name, near_paths(text)) for name, text in rows])
    _section(console, "stack", [("at", near_paths(frame)) for frame in _folded(record.evidence.stack)])
    _history(console, detail.history)
    if stored is not None:
        _message(console, app, detail, stored)


def _print_acts(acts: Sequence[tuple[str, str]]) -> None:
    """Print commands and what they do: in columns where these fit the terminal, else each for itself."""
    widest = max(len(typed) for typed, _ in acts)
    if not is_terminal() or all(widest + 4 + len(what) <= terminal_width() for _, what in acts):
        print_rows(acts, "  ")
        return
    for typed, what in acts:
        if len(typed) + 4 + len(what) <= terminal_width():
            say(f"  {typed}  {what}")
        else:  # a command stays whole
            say(f"  {typed}")
            print_wrapped(what, "      ", 6)


def _with_a_name(typed: str, app: Celery, record: MessageRecord) -> str:
    """Return a command that changes an argument with the name of its task's first one, if it is known."""
    names = names_of(app.tasks.get(record.task))
    return typed.replace("--set NAME=", f"--set {argument(names[0])}=", 1) if names else typed


def _folded(stack: Sequence[str]) -> list[str]:
    """Return the calls down to the outermost of the user's own; the rest is Celery's, and its worker's."""
    own = max((number for number, frame in enumerate(stack, 1) if causes.is_users(frame)), default=0)
    below = len(stack) - own
    if not own or not below:
        return [*stack]
    return [*stack[:own], f"{count_of(below, 'call')} of Celery and its worker below: see --json"]


def _waits(app: Celery, record: MessageRecord, stored: StoredMessage | None) -> str:
    """Return which chord waits for a message, as far as its body can be read here; else the empty string."""
    if stored is None or not (chord := chord_of(stored)):
        return ""
    late = " Its other results may have expired: after a release its body would not run."
    return f"A chord waits for it: {chord}.{late if has_expired_chord(app, record, stored) else ''}"


def _history(console: Any, history: Sequence[sentences.Entry]) -> None:
    if history:
        console.echo("\n" + console.style("history", bold=True))
    for entry in history:
        at = f"  {clock(int(entry['at'].partition('-')[0]) / 1000)}  "
        print_wrapped(near_paths(sentences.sentence(entry)), at, len(at))


def _message(console: Any, app: Celery, detail: Detail, stored: StoredMessage) -> None:
    """Print headers, properties and body of a message that lies in the ledger."""
    # These repeat the arguments, with what is hidden of them.
    headers = {
        name: value for name, value in detail.headers.items() if name not in ("argsrepr", "kwargsrepr")
    }
    for title, values in (("headers", headers), ("properties", detail.properties)):
        _section(console, title, [(name, each) for name, each in sorted(values.items()) if each is not None])
    console.echo("\n" + console.style("body", bold=True))
    redact = plugin_of(app).settings.redact
    for line in preview(stored, lambda value: redacted(app, redact, detail.record.task, value)):
        console.echo(f"  {line}")


def _counts(detail: Detail, *which: str) -> str:
    """Return how often it was started, died, and so on, or only of these; what never happened is left out."""
    record = detail.record
    # What is only observed counts for nothing, and has died all the same.
    seen = sum(entry.get("event") == "crashed" for entry in detail.history if entry.get("note") == "observed")
    counts = {
        "start": sentences.starts_of(record),
        "death": record.crashes or seen,
        "strike": record.strikes,
        "failure": record.failures,
        "release": record.releases,
    }
    shown = ((noun, counts[noun]) for noun in which or counts)
    return ", ".join(count_of(number, noun) for noun, number in shown if number)


def _facts(detail: Detail) -> list[tuple[str, object]]:
    record = detail.record
    least = "at least " if record.incident and record.cause in causes.OF_WORKERS else ""
    after = f", after {least}{record.runtime_ms / 1000:g} s" if record.runtime_ms else ""
    died = f"start {record.deliveries}, process {record.pid}{after}"
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
        ("counts", _counts(detail)),
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
