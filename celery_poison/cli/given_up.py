"""``celery poison restore | purge``: what becomes of messages that were given up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from kombu.utils.json import dumps

from celery_poison.cli.acts import Order, act_options, carry_out, choosing
from celery_poison.cli.reading import whole
from celery_poison.cli.session import seconds, verb
from celery_poison.quarantine.story import Detail
from celery_poison.states import State


@verb(
    *choosing("Those", "that was discarded"),
    *act_options,
    click.option("--force", is_flag=True, help="Those named by id even if they were failed, or edited."),
)
def restore(ctx: click.Context, force: bool, **options: Any) -> None:
    """Bring discarded messages back into quarantine, with their history, causes and counts.

    One that was failed is refused without --force: its caller has been told, and that is not taken back. So
    is one that was edited: its changed copy stands for it.

    \b
    celery -A proj poison restore ID --note "we need it after all"
    celery -A proj poison restore --filter 'task=shop.render' --dry-run
    """
    carry_out(ctx, "restore", Order(**options, state=State.FAIL, resolution="discarded"), force=force)


@verb(
    *choosing("Those", "that was given up"),
    *act_options,
    click.option(
        "--older-than",
        metavar="AGE",
        callback=seconds,
        help="Only what was given up so long ago or longer: 30d.",
    ),
    click.option("--export", "path", metavar="FILE", default="", help="Write each to this new file first."),
    click.option("--no-copy", is_flag=True, help="Keep no copy: they are gone for good."),
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

    What is in quarantine is never deleted: discard it first. Each message is written to the file of --export
    before it is deleted, one JSON object a line as show --json prints it, but for its history.

    \b
    celery -A proj poison purge --older-than 30d --export given-up.jsonl
    celery -A proj poison purge --filter 'task=shop.render' --dry-run
    celery -A proj poison purge ID --no-copy
    """
    chosen = options["ids"] or options["filters"] or options["group"]
    if older_than and options["ids"]:
        raise click.UsageError("--older-than does not go with ids")
    everything = everything or bool(older_than and not chosen)
    order = Order(**options, everything=everything, older_than=older_than or 0.0, state=State.FAIL)
    if order.dry_run:
        carry_out(ctx, "purge", order)
        return
    if bool(path) == no_copy:
        raise click.UsageError("say where a copy goes, --export FILE, or that there is to be none, --no-copy")
    if no_copy:
        carry_out(ctx, "purge", order)
        return
    with _copies(path) as keep:
        carry_out(ctx, "purge", order, before=keep)


@contextmanager
def _copies(path: str) -> Iterator[Callable[[Detail], None]]:
    """Yield what writes a message to a new file that only its owner can read, and waits for the disk."""
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
