"""``celery poison block | unblock``: what goes to quarantine on arrival, without running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_poison.blocks import Kind, Rule
from celery_poison.cli.output import clean, json_option, print_json, print_table, when
from celery_poison.cli.session import app_of, plainly
from celery_poison.quarantine.blocks import Blocks

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_WHAT_OPTIONS = (
    click.option("--task", default="", help="A task, by its name; beside --fingerprint: whose it is."),
    click.option("--fingerprint", default="", help="A fingerprint, as `list --json` and `show` tell it."),
    click.option(
        "--like", "like", default="", metavar="ID", help="The fingerprint of this message in quarantine."
    ),
)
_WHY_OPTIONS = (
    click.option("--note", default="", help="Why; is journalled and shown."),
    click.option("--actor", default="", help="Who does it; default: your login name and host."),
    json_option,
)


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _seconds(ctx: click.Context, parameter: click.Parameter, typed: str | None) -> float | None:
    """Read ``90s``, ``15m``, ``12h`` or ``7d``."""
    if typed is None:
        return None
    number, unit = typed[:-1], typed[-1:]
    if number.isdecimal() and unit in _UNITS and int(number):
        return float(int(number) * _UNITS[unit])
    raise click.BadParameter(f"{typed!r}: write a number with s, m, h or d, for example 12h")


@click.command(cls=CeleryCommand)
@_options(*_WHAT_OPTIONS)
@click.option(
    "--expires", callback=_seconds, help="For how long: 90s, 15m, 12h, 7d. Default: until unblocked."
)
@click.option("--list", "as_list", is_flag=True, help="Only show what is blocked.")
@click.option("--force", is_flag=True, help="Even if this app guards no task of that name.")
@_options(*_WHY_OPTIONS)
@click.pass_context
@handle_preload_options
@plainly
def block(
    ctx: click.Context,
    expires: float | None,
    as_list: bool,
    force: bool,
    note: str,
    actor: str,
    as_json: bool,
    **what: Any,
) -> None:
    """Send new messages of a task, or those like a known poison, to quarantine without running them.

    Every worker acts on it within about a heartbeat. What runs already goes on. A message that is released
    from quarantine runs all the same.

    \b
    celery -A proj poison block --like ID --note "crashes the converter"
    celery -A proj poison block --task shop.convert --expires 2h
    celery -A proj poison block --list
    """
    blocks = Blocks(app_of(ctx))
    if as_list:
        _show(blocks, as_json=as_json)
        return
    kind, name, task = _chosen(blocks, **what)
    how: dict[str, Any] = {"seconds": expires, "actor": actor, "note": note}
    if kind is Kind.TASK:
        rule = blocks.block_task(name, force=force, **how)
    else:
        rule = blocks.block_fingerprint(name, task=task, **how)
    if as_json:
        print_json(rule.as_dict())
    else:
        click.echo(clean(f"blocked  {_named(rule)}, {_until(rule)}"))
        click.echo("the workers act on it within a heartbeat", err=True)


@click.command(cls=CeleryCommand)
@_options(*_WHAT_OPTIONS, *_WHY_OPTIONS)
@click.pass_context
@handle_preload_options
@plainly
def unblock(ctx: click.Context, note: str, actor: str, as_json: bool, **what: Any) -> None:
    """Let new messages of a task, or like a known poison, run again.

    What is in quarantine stays there: release it. The convictions of the fingerprint are forgotten.

    \b
    celery -A proj poison unblock --like ID --note "fixed in 1.2.3"
    celery -A proj poison unblock --task shop.convert
    """
    blocks = Blocks(app_of(ctx))
    kind, name, _ = _chosen(blocks, **what)
    version = blocks.unblock(kind, name, actor=actor, note=note)
    if as_json:
        print_json({"kind": kind, "name": name, "version": version})
    else:
        click.echo(clean(f"unblocked  {kind} {name}"))
        click.echo("the workers act on it within a heartbeat", err=True)


def _chosen(blocks: Blocks, task: str, fingerprint: str, like: str) -> tuple[Kind, str, str]:
    """Return kind, name, and whose messages can match."""
    if like and not (task or fingerprint):
        return Kind.FINGERPRINT, *blocks.fingerprint_of(like)
    if fingerprint and not like:
        return Kind.FINGERPRINT, fingerprint, task
    if task and not like:
        return Kind.TASK, task, task
    raise click.UsageError("say what: --task NAME, --fingerprint HEX [--task NAME], or --like ID")


def _show(blocks: Blocks, *, as_json: bool) -> None:
    sheet = blocks.read()
    if as_json:
        print_json(sheet.as_dict())
        return
    if sheet.rules:
        print_table(["KIND", "NAME", "TASK", "SINCE", "UNTIL", "WHY"], map(_row, sheet.rules))
    else:
        click.echo("nothing is blocked", err=True)
    for sentence in sheet.ignored:
        click.echo(clean(sentence), err=True)


def _row(rule: Rule) -> list[str]:
    until = when(rule.until) if rule.until else "unblocked"
    why = f"{rule.convictions} convictions" if not rule.actor else f"{rule.actor}: {rule.note or '-'}"
    return [rule.kind, rule.name, rule.task or "any", when(rule.since), until, why]


def _named(rule: Rule) -> str:
    of = f" of {rule.task or 'any task'}" if rule.kind is Kind.FINGERPRINT else ""
    return f"{rule.kind} {rule.name}{of}"


def _until(rule: Rule) -> str:
    return f"until {when(rule.until)}" if rule.until else "until somebody unblocks it"
