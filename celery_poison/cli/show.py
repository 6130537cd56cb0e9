"""``celery poison show``: everything that is known about one message."""

from __future__ import annotations

import base64
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options
from kombu.utils.json import dumps

from celery_poison.cli.output import clean, json_option, print_json, print_rows, when
from celery_poison.cli.session import open_quarantine, plainly
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.quarantine import story
from celery_poison.quarantine.body import decoded, preview
from celery_poison.quarantine.dossier import Entries, find, parcel_if_kept
from celery_poison.states import State


@click.command(cls=CeleryCommand)
@click.argument("id")
@click.option("--raw", is_flag=True, help="Write the body to stdout, byte for byte as it was received.")
@json_option
@click.pass_context
@handle_preload_options
@plainly
def show(ctx: click.Context, id: str, raw: bool, as_json: bool, **kwargs: Any) -> None:
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
        body = quarantine.message(quarantine.get(id).mid).body
        click.echo(body, nl=False)
        return
    record, history = find(quarantine, id)
    parcel = parcel_if_kept(quarantine, record)
    if as_json:
        print_json(_as_dict(record, history, parcel))
    else:
        _say(ctx.obj, record, history, parcel)


def _as_dict(record: MessageRecord, history: Entries, parcel: StoredMessage | None) -> dict[str, Any]:
    told = {**record.as_dict(), "story": story.why(record), "history": history}
    if parcel is not None:
        told.update(
            content_type=parcel.content_type,
            content_encoding=parcel.content_encoding,
            headers=dict(parcel.headers),
            properties=dict(parcel.properties),
            body=decoded(parcel),
            body_base64=base64.b64encode(parcel.body).decode(),
        )
    return told


def _say(console: Any, record: MessageRecord, history: Entries, parcel: StoredMessage | None) -> None:
    title = console.style(clean(record.task), bold=True)
    console.echo(f"{title}  {clean(record.id)}\n{story.STANDING[record.state]} {story.why(record)}")
    _section(console, "record", [(name, value) for name, value in _facts(record) if value not in ("", "-")])
    _section(console, "stack", [("at", frame) for frame in record.evidence.stack])
    _section(console, "history", [(story.at(entry), story.sentence(entry)) for entry in history])
    if parcel is None:
        if record.state != State.DLVD:
            console.echo("\nThe message itself is with the broker: only quarantine keeps headers and body.")
        return
    for title, values in (("headers", parcel.headers), ("properties", parcel.properties)):
        _section(
            console, title, [(name, values[name]) for name in sorted(values) if values[name] is not None]
        )
    console.echo("\n" + console.style("body", bold=True))
    for line in preview(parcel):
        console.echo(f"  {line}")


def _facts(record: MessageRecord) -> list[tuple[str, object]]:
    counted = f"{record.deliveries} deliveries, {record.crashes} deaths, {record.strikes} strikes,"
    return [
        ("mid", record.mid),
        ("state", record.state),
        ("queue", record.queue),
        ("cause", record.cause),
        ("last death", _last_death(record)),
        ("counts", f"{counted} {record.failures} failures, {record.releases} releases"),
        ("worker", record.worker),
        ("incident", record.incident),
        ("fingerprint", record.fingerprint),
        ("first seen", when(record.first_seen)),
        ("quarantined", when(record.quarantined_at)),
        ("last seen", when(record.last_seen)),
    ]


def _last_death(record: MessageRecord) -> str:
    if not record.pid:
        return ""
    return f"start {record.deliveries}, process {record.pid}, after {record.runtime_ms / 1000:g} s"


def _section(console: Any, title: str, rows: list[tuple[str, object]]) -> None:
    if rows:
        console.echo("\n" + console.style(title, bold=True))
        print_rows([(name, value if isinstance(value, str) else dumps(value)) for name, value in rows], "  ")
