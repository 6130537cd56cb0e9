"""``celery poison gate show | lift``: whether deaths convict at this moment."""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_poison.cli.output import clean, json_option, print_json, when
from celery_poison.cli.session import app_of, plainly
from celery_poison.model import GateRecord
from celery_poison.quarantine.gate import FleetGate


@click.group()
def gate() -> None:
    """See and lift the fleet gate, which closes when too many workers die at once.

    While it is closed, only a death on trial convicts. It opens by itself when no more workers die.

    \b
    celery -A proj poison gate show
    celery -A proj poison gate lift --note "the node is back"
    """


@gate.command(cls=CeleryCommand)
@json_option
@click.pass_context
@handle_preload_options
@plainly
def show(ctx: click.Context, as_json: bool, **kwargs: Any) -> None:
    """Say whether it is closed, since when, and why.

    \b
    celery -A proj poison gate show
    celery -A proj poison gate show --json | jq .closed
    """
    seen = FleetGate(app_of(ctx)).read()
    if as_json:
        print_json(seen.as_dict())
    else:
        click.echo(clean(told_of(seen)))


@gate.command(cls=CeleryCommand)
@click.option("--note", default="", help="Why; is journalled.")
@click.option("--actor", default="", help="Who does it; default: your login name and host.")
@json_option
@click.pass_context
@handle_preload_options
@plainly
def lift(ctx: click.Context, note: str, actor: str, as_json: bool, **kwargs: Any) -> None:
    """Let deaths convict again, at once; those that closed the gate are not counted any more.

    \b
    celery -A proj poison gate lift --note "the node is back"
    """
    seen = FleetGate(app_of(ctx)).lift(actor=actor, note=note)
    if as_json:
        print_json(seen.as_dict())
    else:
        click.echo("lifted  the fleet gate: deaths convict again")


def told_of(gate: GateRecord) -> str:
    """Return one sentence about how the gate stands."""
    if gate.closed:
        return f"CLOSED since {when(gate.closed_at)}, until {when(gate.until)} at the earliest: {gate.story}"
    if gate.lifted_at is None:
        return "open"
    return f"open; lifted {when(gate.lifted_at)} by {gate.lifted_by or 'itself'}"
