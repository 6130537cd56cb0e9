"""``celery poison status``: how things stand, and loudly what is wrong."""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_poison.cli.gate import told_of
from celery_poison.cli.output import clean, count_of, json_option, print_json, when
from celery_poison.cli.session import app_of, plainly
from celery_poison.proposals import Proposal
from celery_poison.quarantine.overview import Overview, overview
from celery_poison.stuck import Stranded


@click.command(cls=CeleryCommand)
@json_option
@click.pass_context
@handle_preload_options
@plainly
def status(ctx: click.Context, as_json: bool, **kwargs: Any) -> None:
    """Say how many messages are where, who is alive, and what is wrong.

    \b
    celery -A proj poison status
    celery -A proj poison status --json | jq .unguarded
    """
    seen = overview(app_of(ctx))
    if as_json:
        print_json(seen.as_dict())
    else:
        _say(ctx.obj, seen)


def _say(console: Any, seen: Overview) -> None:
    for name, told in _lines(seen):
        console.echo(f"{name:<12}{clean(told)}")
    for warning in seen.warnings:
        console.echo(console.style("WARNING", fg="red", bold=True) + f"  {clean(warning)}")
    if not seen.warnings:
        console.echo(console.style("all is well", fg="green"))


def _lines(seen: Overview) -> list[tuple[str, str]]:
    workers = f"{seen.alive} alive, {seen.dead} silent, {seen.stopping} stopping"
    unguarded = f"{count_of(seen.unguarded, 'task')}, {count_of(seen.ledger_errors, 'ledger error')}"
    would = ", ".join(f"{number} {cause}" for cause, number in seen.would_quarantine.items())
    observed = [("observed", f"would have been quarantined: {would or 'nothing yet'}")]
    return [
        *(observed if seen.observe_only or would else []),
        ("ledger", f"{seen.ledger}, namespace {seen.namespace}"),
        ("quarantine", count_of(seen.quarantined, "message") + " (NDLV)"),
        ("given up", count_of(seen.failed, "message") + " (FAIL)"),
        ("candidates", str(seen.candidates)),
        ("running", f"{seen.running} (DLNG)"),
        ("parked", f"{count_of(seen.parked, 'message')} (TBDL)"),
        *([("stuck", _stuck(seen.stranded))] if seen.stranded.total else []),
        ("blocked", count_of(seen.blocked, "rule")),
        *([("proposal", _told(seen.proposal))] if seen.proposal else []),
        ("gate", told_of(seen.gate)),
        ("workers", workers),
        ("monitor", seen.monitor or "nobody"),
        ("unguarded", unguarded),
        ("journal", f"{seen.journal} entries"),
    ]


def _stuck(stranded: Stranded) -> str:
    kinds = ", ".join(f"{number} {kind}" for kind, number in stranded.counts.items() if number)
    return f"nobody works on {count_of(stranded.total, 'message')}: {kinds}"


def _told(proposal: Proposal) -> str:
    options = f" and {count_of(len(proposal.policy), 'option')}" if proposal.policy else ""
    what = f"{count_of(len(proposal.rules), 'rule')}{options}"
    return f"{what} of the pipeline, until {when(proposal.until)}: `pipeline publish --show`"
