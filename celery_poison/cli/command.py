"""What every verb needs: common options, the app behind it, errors as one plain line with an exit status."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from datetime import time as clock
from functools import wraps
from typing import IO, Any

import click
from celery import Celery
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_poison.basics import text
from celery_poison.basics.text import apps_given, clean
from celery_poison.broker.bounds import bounded_options
from celery_poison.desk import Quarantine
from celery_poison.desk.care import BadCare, seconds_of
from celery_poison.desk.search import UNITS, BadFilter
from celery_poison.errors import ConfigurationError, LedgerUnavailable, PoisonError
from celery_poison.plugin import plugin_of

REFUSED, WRONG_USAGE, UNREACHABLE = 1, 2, 3

Option = Callable[..., Any]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on stdout.")


def _use_utc(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> bool:
    token = text.utc.set(wanted)
    ctx.call_on_close(lambda: text.utc.reset(token))
    return wanted


utc_option = click.option(
    "--utc",
    is_flag=True,
    callback=_use_utc,
    expose_value=False,
    help="Print whole dates and times, in UTC.",
)
force_option = click.option("--force", is_flag=True, help="Even if this app guards no task of that name.")


def limit_option(default: int) -> Option:
    return click.option(
        "-n", "--limit", type=click.IntRange(1), default=default, show_default=True, help="At most so many."
    )


def _ticket(ctx: click.Context, parameter: click.Parameter, typed: str) -> str:
    if typed and not re.fullmatch(r"\w[\w.#/-]{0,63}", typed):
        raise click.BadParameter(f"{typed!r}: write a name without blanks, for example INC-412")
    return typed


#: Of every verb that changes something. The ticket stands before the note: so it is wherever the note is, and
#: one search finds all acts of it.
who_options = (
    click.option("--note", default="", help="The reason; journalled and shown."),
    click.option(
        "--ticket",
        metavar="NAME",
        default="",
        callback=_ticket,
        help="Name of the incident, as INC-412; stands before the note.",
    ),
    click.option("--actor", default="", help="Your name; default: login name and host."),
)


def seconds(ctx: click.Context, parameter: click.Parameter, typed: str | None) -> float | None:
    """Read ``90s``, ``15m``, ``12h`` or ``7d``."""
    if typed is None:
        return None
    try:
        return seconds_of(typed)
    except BadCare as wrong:
        raise click.BadParameter(str(wrong)) from None


def age(ctx: click.Context, parameter: click.Parameter, typed: str | None) -> float | None:
    """Read a moment as ``_age`` does."""
    return None if typed is None else _age(typed)


def _age(typed: str) -> float:
    """Return how many seconds ago ``2h``, ``14:30`` or ``2026-11-23T14:30`` was, in local time."""
    number, unit = typed[:-1], typed[-1:]
    if number.isdecimal() and unit in UNITS:
        return float(int(number) * UNITS[unit])
    now = datetime.now().astimezone()
    try:
        if ":" in typed[:3]:
            moment = datetime.combine(now.date(), clock.fromisoformat(typed))
        else:
            moment = datetime.fromisoformat(typed)
    except ValueError:
        raise click.BadParameter(f"{typed!r}: write 2h (ago), 14:30, or 2026-11-23T14:30") from None
    age = (now - moment.astimezone()).total_seconds()
    if age < 0:
        raise click.BadParameter(f"{typed!r} is in the future")
    return age


def _period(ctx: click.Context, parameter: click.Parameter, typed: Sequence[str] | str | None) -> list[str]:
    """Return ``--since`` and ``--between`` as conditions of a filter."""
    ages = [_age(each) for each in ([typed] if isinstance(typed, str) else typed or ())]
    if ages and ages[0] < ages[-1]:
        raise click.BadParameter(f"{' '.join(typed or ())}: the first is to be the earlier one")
    return [f"age{how}{age:f}s" for how, age in zip(("<=", ">="), ages, strict=False)]


#: Of every verb that chooses among messages. The times are a spelling of ``age``, and filters like it.
filter_options = (
    click.option(
        "--filter",
        "filters",
        multiple=True,
        metavar="CONDITIONS",
        help="Messages for which all conditions hold: 'task=shop.* cause=sigkill age>2h'.",
    ),
    click.option(
        "--since",
        metavar="TIME",
        callback=_period,
        help="Messages quarantined since then: 2h (ago), 14:30, 2026-11-23T14:30.",
    ),
    click.option(
        "--between",
        nargs=2,
        metavar="TIME TIME",
        callback=_period,
        help="Messages quarantined between these two.",
    ),
)


class CommandRefused(click.ClickException):
    """Ends the command with one line on stderr, and with a status."""

    def __init__(self, message: str, status: int = REFUSED) -> None:
        super().__init__(message)
        self.exit_code = status  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"celery poison: {clean(self.message)}", err=True)


def status_of(error: PoisonError) -> int:
    """Return the exit status that the contract gives to an error."""
    if isinstance(error, LedgerUnavailable):
        return UNREACHABLE
    return WRONG_USAGE if isinstance(error, (ConfigurationError, BadFilter)) else REFUSED


def _without_app(error: PoisonError) -> str:
    """Return the cure where no app was named: Celery then takes an empty one of its own."""
    context = click.get_current_context(silent=True)
    app = getattr(context and context.obj, "app", None)
    if not isinstance(error, ConfigurationError) or getattr(app, "main", "") != "default":
        return ""
    return "" if any(apps_given()) else "no app was named: write celery -A proj poison ..., or set APP"


def _meanwhile(error: PoisonError) -> str:
    """Return what workers do while Redis is away, and what to type; empty for any other error."""
    app = getattr(click.get_current_context().obj, "app", None)
    if not isinstance(error, LedgerUnavailable) or "not reachable" not in str(error) or app is None:
        return ""
    try:
        goes_on = plugin_of(app).settings.fail_open
    except ConfigurationError:
        return ""
    does = "go on, tasks run unguarded" if goes_on else "start no guarded task (poison_fail_open=False)"
    return f"; meanwhile workers {does}; next: {text.command('poison doctor')}"


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Say every error of ours in one line, without a traceback."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except PoisonError as error:
            reason = _without_app(error)
            line = f"{reason} ({error})" if reason else f"{error}{_meanwhile(error)}"
            raise CommandRefused(line, status_of(error)) from error

    return run


def verb(
    *options: Option, name: str | None = None, group: click.Group | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command below ``celery`` of a function: it gets the context, and its own options by name."""

    def make(function: Callable[..., Any]) -> click.Command:
        own: set[str] = set()

        @wraps(function)
        def run(ctx: click.Context, **values: Any) -> Any:
            # An app may add options of its own to every command; those are not for the verb.
            typed = {name: value for name, value in values.items() if name in own - {"as_json"}}
            if "filters" in own:
                typed["filters"] = [*typed["filters"], *typed.pop("since"), *typed.pop("between")]
            if "ticket" in own:
                typed["note"] = ": ".join(filter(None, (typed.pop("ticket"), typed["note"])))
            return function(ctx, **typed)

        callback = click.pass_context(handle_preload_options(plainly(run)))
        for option in reversed(options):
            callback = option(callback)
        command: click.Command = (group or click).command(name, cls=CeleryCommand)(callback)
        own.update(str(parameter.name) for parameter in command.params)
        return command

    return make


def app_of(ctx: click.Context) -> Celery:
    """Return the app that ``celery -A`` named."""
    app: Celery = ctx.obj.app
    return app


def open_quarantine(ctx: click.Context) -> Quarantine:
    """Return the quarantine of the app, once it is sure that the ledger is this app's.

    Raises:
        ConfigurationError: a setting is wrong, or the ledger belongs to another app.
        LedgerUnavailable: Redis is away.
    """
    app = app_of(ctx)
    # This process is ours: nothing in it, such as Celery's sending of errbacks, may wait for ever.
    app.conf.update(broker_transport_options=bounded_options(app), task_publish_retry=False)
    quarantine = Quarantine(app)
    quarantine.check_owner()
    return quarantine
