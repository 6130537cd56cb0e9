"""What every verb needs: the app behind it, and errors as one plain line with the right exit status."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import IO, Any, ParamSpec, TypeVar

import click
from celery import Celery

from celery_poison.broker.publish import bounded_options
from celery_poison.cli.output import clean
from celery_poison.errors import ConfigurationError, LedgerUnavailable, PoisonError
from celery_poison.quarantine import Quarantine
from celery_poison.quarantine.filters import BadFilter
from celery_poison.quarantine.owner import check_owner

P = ParamSpec("P")
T = TypeVar("T")

REFUSED, WRONG_USAGE, UNREACHABLE = 1, 2, 3


class Refused(click.ClickException):
    """Ends the command with one line on stderr."""

    exit_code = REFUSED

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"celery poison: {clean(self.message)}", err=True)


class Misused(Refused):
    exit_code = WRONG_USAGE


class Unreachable(Refused):
    exit_code = UNREACHABLE


def trouble(error: PoisonError) -> Refused:
    """Return the end of the command that the contract gives to an error."""
    if isinstance(error, LedgerUnavailable):
        return Unreachable(str(error))
    usage = isinstance(error, (ConfigurationError, BadFilter))
    return Misused(str(error)) if usage else Refused(str(error))


def plainly(verb: Callable[P, T]) -> Callable[P, T]:
    """Say every error of ours in one line, without a traceback."""

    @wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return verb(*args, **kwargs)
        except PoisonError as error:
            raise trouble(error) from error

    return run


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
    check_owner(app, quarantine.queries)
    return quarantine
