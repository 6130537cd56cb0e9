"""``celery poison doctor``: checks everything that the plugin's promises rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click
from celery import Celery
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_poison.cli.checks import rights, server, surroundings
from celery_poison.cli.checks.finding import Finding
from celery_poison.cli.output import clean, json_option, print_json
from celery_poison.cli.session import REFUSED, UNREACHABLE, app_of
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.queries import Queries
from celery_poison.plugin import Plugin, plugin_of
from celery_poison.quarantine.overview import without_secrets

_VERIFY = "name who signed the server's certificate: ssl_ca_certs in the URL, or in broker_use_ssl"
_START = "start Redis, or correct poison_redis_url"
_COLOURS = {"ok": "green", "warn": "yellow", "FAIL": "red"}


@click.command(cls=CeleryCommand)
@json_option
@click.pass_context
@handle_preload_options
def doctor(ctx: click.Context, as_json: bool, **kwargs: Any) -> None:
    """Check settings, Redis, permissions, clock, broker and result backend; each with its cure.

    Exit status: 0 nothing failed, 1 something did, 3 Redis is unreachable.

    \b
    celery -A proj poison doctor
    celery -A proj poison doctor --json | jq '.[] | select(.level != "ok")'
    """
    findings: list[Finding] = []
    for finding in examine(app_of(ctx)):
        findings.append(finding)
        if not as_json:
            _say(ctx.obj, finding)
    if as_json:
        print_json([finding.as_dict() for finding in findings])
    ctx.exit(_status(findings))


def _say(console: Any, finding: Finding) -> None:
    level = console.style(f"{finding.level:<4}", fg=_COLOURS[finding.level])
    console.echo(f"{level}  {finding.check:<13}{clean(finding.said)}")
    if finding.cure:
        console.echo(f"{'':19}cure: {clean(finding.cure)}")


def _status(findings: list[Finding]) -> int:
    failed = [finding for finding in findings if finding.level == "FAIL"]
    if any(finding.check == "reachable" for finding in failed):
        return UNREACHABLE
    return REFUSED if failed else 0


def examine(app: Celery) -> Iterator[Finding]:
    """Yield one finding after the other; what rests on something broken is left out."""
    try:
        plugin = plugin_of(app)
        found = surroundings.settings(plugin)
        ledger, url = plugin.open_ledger(), without_secrets(plugin.ledger_url)
    except ConfigurationError as error:
        cure = "correct the Celery configuration; with no -A there is none" if app.main == "default" else ""
        yield Finding("settings", "FAIL", str(error), cure or "correct the Celery configuration")
        return
    yield found
    try:
        with clear_errors("examining Redis"):
            yield server.reachability(ledger.client, url)
            yield from _ledger(app, ledger, plugin.settings.durability)
            yield surroundings.stuck(app)
            if plugin.settings.trial == "queue":
                yield surroundings.trials(plugin.settings, Queries(ledger))
    except LedgerUnavailable as error:
        cure = _VERIFY if "CERTIFICATE_VERIFY_FAILED" in str(error) else _START
        yield Finding("reachable", "FAIL", str(error), cure)
    yield from _around(plugin)


def _ledger(app: Celery, ledger: Ledger, durability: str) -> Iterator[Finding]:
    yield server.encryption(ledger.client)
    yield from server.server(ledger.client)
    yield server.durability(ledger.client, durability)
    yield from rights.rights(ledger.client, ledger.keys)
    yield from server.clock(ledger.client)
    yield surroundings.owner(app, Queries(ledger))


def _around(plugin: Plugin) -> Iterator[Finding]:
    checks: tuple[Callable[[], Finding], ...] = (
        lambda: surroundings.tasks(plugin),
        lambda: surroundings.broker(plugin.app),
        lambda: surroundings.backend(plugin.app),
    )
    for check in checks:
        yield check()
