"""``celery poison export | import | purge``: messages as files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, Any

import click
from kombu.utils.json import dumps

from celery_poison.basics.text import count_of
from celery_poison.cli.command import REFUSED, json_option, open_quarantine, seconds, verb, who_options
from celery_poison.cli.decision_verbs import (
    TypedAct,
    act_options,
    carry_out,
    choosing,
    chosen,
    of_quarantine,
    say_refusals,
)
from celery_poison.cli.output import print_json, private_file, wants_json
from celery_poison.cli.show import whole
from celery_poison.desk.reading import Detail
from celery_poison.states import State


@verb(
    *of_quarantine,
    click.option(
        "--output", callback=private_file, metavar="FILE", default="-", help="A file instead of stdout."
    ),
)
def export(ctx: click.Context, output: IO[str], **options: Any) -> None:
    """Write messages in quarantine, with their bodies: one JSON object a line. Nothing changes.

    The file holds whole messages, secrets included. Import reads it.

    \b
    celery -A proj poison export --group GROUP --output poison.jsonl
    """
    order = TypedAct(**options, yes=True)
    quarantine, count = open_quarantine(ctx), 0
    for line in quarantine.export(chosen(quarantine, "export", order)):
        output.write(line + "\n")
        count += 1
    click.echo(f"{count_of(count, 'message')} written" if count else "nothing matched", err=True)
    if not count:
        ctx.exit(REFUSED)


@verb(
    click.argument("file", type=click.File("r", encoding="ascii", errors="replace"), metavar="FILE"),
    *who_options,
    json_option,
    name="import",
)
def import_(ctx: click.Context, file: IO[str], note: str, actor: str) -> None:
    """Put exported messages into this quarantine; FILE is - for stdin.

    A message that is here already, or was imported within 30 days, is skipped. A line that export did not
    write is refused. Released messages run: import only files that you trust.

    \b
    celery -A proj poison import poison.jsonl --note "from production, to reproduce it"
    """
    outcomes = open_quarantine(ctx).import_(file, actor=actor, note=note)
    if wants_json():
        print_json([outcome.as_dict() for outcome in outcomes])
    else:
        say_refusals(outcomes)
    refused = sum(not outcome.done for outcome in outcomes)
    known = sum(outcome.done and bool(outcome.error) for outcome in outcomes)
    summary = f"{count_of(len(outcomes) - refused - known, 'message')} imported"
    summary += (f", {known} known already" if known else "") + (f", {refused} refused" if refused else "")
    click.echo(summary, err=True)
    if refused or not outcomes:
        ctx.exit(REFUSED)


@verb(
    *choosing("Those", "that was given up"),
    *act_options,
    click.option(
        "--older-than",
        metavar="AGE",
        callback=seconds,
        help="Given up so long ago or longer: 30d.",
    ),
    click.option("--export", "path", metavar="FILE", default="", help="First write each to this new file."),
    click.option("--no-copy", is_flag=True, help="Keep no copy."),
)
def purge(
    ctx: click.Context,
    older_than: float | None,
    path: str,
    no_copy: bool,
    everything: bool,
    **options: Any,
) -> None:
    """Delete messages that were given up: failed, discarded, or replaced by a changed copy.

    Messages in quarantine are never deleted: discard them first. --export writes each message to a private
    file, one JSON object a line, before it is deleted.

    \b
    celery -A proj poison purge --older-than 30d --export given-up.jsonl
    celery -A proj poison purge ID --no-copy
    """
    chosen = options["ids"] or options["filters"] or options["group"]
    if older_than and options["ids"]:
        raise click.UsageError("--older-than does not go with ids")
    everything = everything or bool(older_than and not chosen)
    order = TypedAct(**options, everything=everything, older_than=older_than or 0.0, state=State.FAIL)
    if not order.dry_run and bool(path) == no_copy:
        raise click.UsageError("say where a copy goes, --export FILE, or that there is to be none, --no-copy")
    copies: AbstractContextManager[Any] = _copies(path) if path and not order.dry_run else nullcontext()
    with copies as keep:
        carry_out(ctx, "purge", order, before=keep)


@contextmanager
def _copies(path: str) -> Iterator[Callable[[Detail], None]]:
    """Yield a function that writes a message to a new private file, and waits for the disk."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise click.UsageError(f"--export {path}: {error.strerror}") from None
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.fsync(directory)  # else the file's name may be lost with the machine
    os.close(directory)
    with open(number, "w", encoding="ascii") as file:

        def keep(detail: Detail) -> None:
            file.write(dumps(whole(detail)) + "\n")
            file.flush()
            os.fsync(file.fileno())

        try:
            yield keep
        finally:
            if not file.tell():  # so that the same command can be typed again, with --yes for example
                os.unlink(path)
