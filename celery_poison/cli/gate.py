"""``celery poison gate``: the fleet gate."""

from __future__ import annotations

import click

from celery_poison.basics.text import when
from celery_poison.cli.output import answer
from celery_poison.cli.session import app_of, json_option, verb, who_options
from celery_poison.ledger.fleet_model import GateRecord
from celery_poison.quarantine import Quarantine


@click.group()
def gate() -> None:
    """See and lift the fleet gate, which closes when too many workers die at once.

    While it is closed, only a death on trial convicts. It opens by itself when no more workers die.

    \b
    celery -A proj poison gate show
    """


@verb(json_option, name="show", group=gate)
def show_gate(ctx: click.Context) -> None:
    """Say whether it is closed, since when, and why.

    \b
    celery -A proj poison gate show
    """
    seen = Quarantine(app_of(ctx)).gate()
    answer(seen.as_dict(), gate_line(seen))


@verb(*who_options, json_option, group=gate)
def lift(ctx: click.Context, note: str, actor: str) -> None:
    """Let deaths convict again at once, and forget those that closed the gate.

    \b
    celery -A proj poison gate lift --note "the node is back"
    """
    seen = Quarantine(app_of(ctx)).lift_gate(actor=actor, note=note)
    answer(seen.as_dict(), "lifted  the fleet gate: deaths convict again")


def gate_line(gate: GateRecord) -> str:
    """Return one sentence about how the gate stands."""
    if gate.closed:
        return f"CLOSED since {when(gate.closed_at)}, until {when(gate.until)} at the earliest: {gate.story}"
    if gate.lifted_at is None:
        return "open"
    return f"open; lifted {when(gate.lifted_at)} by {gate.lifted_by or 'itself'}"
