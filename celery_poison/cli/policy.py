"""``celery poison policy get | set | unset``: what tasks tolerate, changed while the workers run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_poison.cli.output import clean, json_option, print_json, print_table
from celery_poison.cli.session import REFUSED, app_of, plainly
from celery_poison.policy import OVERRIDABLE
from celery_poison.quarantine.policies import Policies, PolicyChange, TaskPolicy, shown

_CHANGE_OPTIONS = (
    click.option("--note", default="", help="Why; is journalled."),
    click.option("--actor", default="", help="Who changes it; default: your login name and host."),
    click.option(
        "--if-version",
        type=click.IntRange(0),
        metavar="N",
        help="Change nothing unless this is still the version that `policy get` shows.",
    ),
    json_option,
)


def _change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_CHANGE_OPTIONS):
        command = option(command)
    return command


@click.group()
def policy() -> None:
    """See and change what tasks tolerate, while the workers run.

    Every worker acts on a change within about a heartbeat, without a restart. An override of a task goes
    before one of every task ('*'), and both go before the code and the settings.

    \b
    celery -A proj poison policy get
    celery -A proj poison policy set shop.convert max_crashes=1 --note "until 1.2.3 is out"
    celery -A proj poison policy unset shop.convert
    """


@policy.command(cls=CeleryCommand)
@click.argument("task", required=False)
@json_option
@click.pass_context
@handle_preload_options
@plainly
def get(ctx: click.Context, task: str | None, as_json: bool, **kwargs: Any) -> None:
    """Show what each task, or one TASK, tolerates, and where that comes from.

    override: set at run time for the task; override *: for every task; code: guarded(...) or an attribute of
    the task; setting: poison_max_crashes and so on, or their default.

    \b
    celery -A proj poison policy get
    celery -A proj poison policy get shop.convert --json | jq .version
    """
    sheet = Policies(app_of(ctx)).read()
    found = [told for told in sheet.tasks if task in (None, told.task)]
    if as_json:
        print_json({**sheet.as_dict(), "tasks": [told.as_dict() for told in found]})
    else:
        if found:
            print_table(["TASK", *(name.upper() for name in OVERRIDABLE), ""], map(_row, found))
        click.echo(f"version {sheet.version}" if sheet.version else "nothing was ever overridden", err=True)
        for sentence in sheet.ignored:
            click.echo(clean(sentence), err=True)
    if task is not None and not found:
        click.echo(clean(f"this app guards no task {task!r}, and nothing is overridden for it"), err=True)
        ctx.exit(REFUSED)


@policy.command("set", cls=CeleryCommand)
@click.argument("task")
@click.argument("options", nargs=-1, required=True, metavar="OPTION=VALUE...")
@_change_options
@click.option("--force", is_flag=True, help="Even if this app guards no task of that name.")
@click.pass_context
@handle_preload_options
@plainly
def set_(
    ctx: click.Context, task: str, options: Sequence[str], force: bool, as_json: bool, **more: Any
) -> None:
    """Override options of TASK, or of every guarded task: '*', in quotes.

    Options: max_crashes, max_failures and max_payload_bytes, which may be none. What was overridden before
    and is not named stays.

    \b
    celery -A proj poison policy set shop.convert max_crashes=3 max_failures=10 --note "slow supplier"
    celery -A proj poison policy set '*' max_payload_bytes=1048576
    celery -A proj poison policy set shop.convert max_payload_bytes=none --if-version 1767225600000
    """
    wanted = dict(map(_option, options))
    _report(Policies(app_of(ctx)).set(task, wanted, force=force, **_who(more)), as_json=as_json)


@policy.command(cls=CeleryCommand)
@click.argument("task")
@click.argument("options", nargs=-1, metavar="[OPTION]...")
@_change_options
@click.pass_context
@handle_preload_options
@plainly
def unset(ctx: click.Context, task: str, options: Sequence[str], as_json: bool, **more: Any) -> None:
    """Take overrides of TASK, or of '*', away: those of the named options, else all.

    \b
    celery -A proj poison policy unset shop.convert max_crashes
    celery -A proj poison policy unset '*' --note "incident is over"
    """
    _report(Policies(app_of(ctx)).unset(task, options, **_who(more)), as_json=as_json)


def _who(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("actor", "note", "if_version")}


def _option(typed: str) -> tuple[str, Any]:
    name, given, value = typed.partition("=")
    if not given:
        raise click.UsageError(
            f"{typed!r} is not OPTION=VALUE: write for example max_crashes=3, and '*' in quotes"
        )
    return name.strip(), _value(value.strip())


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        return text  # refused by the same check as a setting, which names the cure


def _row(told: TaskPolicy) -> list[str]:
    cells = [
        f"{shown(told.values[name])} ({told.origins[name]})" if name in told.values else "-"
        for name in OVERRIDABLE
    ]
    remark = "" if told.guarded or told.task == "*" else "not a guarded task of this app"
    return [told.task, *cells, remark]


def _report(change: PolicyChange, *, as_json: bool) -> None:
    if as_json:
        print_json(change.as_dict())
        return
    options = " ".join(f"{name}={shown(value)}" for name, value in change.options.items())
    click.echo(clean(f"{change.task}  {options or 'not overridden any more'}"))
    click.echo(f"version {change.version}; the workers act on it within a heartbeat", err=True)
