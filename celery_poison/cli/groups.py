"""``celery poison groups``: what is in quarantine, counted by what it has in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_poison.cli.listing import ROWS, filter_option
from celery_poison.cli.output import json_option, print_json, print_table, when
from celery_poison.cli.session import open_quarantine, plainly
from celery_poison.quarantine.filters import Filter
from celery_poison.quarantine.groups import By, Group


@click.command(cls=CeleryCommand)
@click.option(
    "--by",
    type=click.Choice([by.value for by in By], case_sensitive=False),
    default=By.FINGERPRINT.value,
    show_default=True,
    help="fingerprint: task, cause and arguments. cause: task and cause.",
)
@filter_option
@click.option("--limit", type=click.IntRange(1), help=f"At most so many; default {ROWS}, with --json all.")
@json_option
@click.pass_context
@handle_preload_options
@plainly
def groups(
    ctx: click.Context, by: str, filters: Sequence[str], limit: int | None, as_json: bool, **kwargs: Any
) -> None:
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
    shown = limit if as_json or limit else ROWS
    page = found[:shown]
    if as_json:
        print_json([group.as_dict() for group in page])
        return
    if not page:
        click.echo("nothing", err=True)
        return
    headings = ("GROUP", "MESSAGES", "TASK", "CAUSE", "FINGERPRINT", "RELAPSED", "FIRST SEEN", "LAST SEEN")
    print_table(headings, map(_row, page))
    if len(found) > len(page):
        click.echo(f"there are {len(found)} groups: --limit shows more of them", err=True)


def _row(group: Group) -> Sequence[object]:
    return (
        group.group,
        group.count,
        group.task,
        group.cause or "-",
        group.fingerprint or "-",
        group.relapsed,
        when(group.first_seen),
        when(group.last_seen),
    )
