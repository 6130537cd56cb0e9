"""``celery poison release`` with care: its options, and how it says what it did not release (NEW-6)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import click

from celery_poison.cli.output import say
from celery_poison.cli.session import Option, seconds
from celery_poison.quarantine import Care
from celery_poison.quarantine.acting import Outcome
from celery_poison.quarantine.careful import SOAK
from celery_poison.text import count_of

_RATE = re.compile(r"(\d+(?:\.\d+)?)/(s|m)")
_SECONDS = {"s": 1, "m": 60}
#: Messages that are refused for the same reason and told one by one.
_SAID = 5


def _per_second(ctx: click.Context, parameter: click.Parameter, typed: str | None) -> float | None:
    """Read ``10/s`` or ``30/m``."""
    if typed is None:
        return None
    found = _RATE.fullmatch(typed)
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{typed!r}: write a number per second or minute, for example 10/s or 30/m")
    return float(found[1]) / _SECONDS[found[2]]


#: What a release by the monitor cannot be.
_BY_HAND = ("canary", "soak", "rate", "max_waiting", "keep_going", "keep_counts", "to")


def schedule_of(options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Take --after, --times and --cancel out of ``options``; return the verb, and its arguments."""
    after, times, cancel = (options.pop(name) for name in ("after", "times", "cancel"))
    if not after and not cancel:
        if times:
            raise click.UsageError("--times says how often --after is repeated: add --after")
        return "release", {}
    without = [f"--{name.replace('_', '-')}" for name in _BY_HAND if options[name]]
    if without or (after and cancel):
        typed = "--cancel takes --after back" if cancel else "--after leaves the release to the monitor"
        raise click.UsageError(f"{typed}: use it without {', '.join(without) or '--after'}")
    if cancel:
        del options["force"]
        return "unschedule", {}
    return "schedule", {"after": after, "times": times or 1, "force": options.pop("force")}


careful_options: tuple[Option, ...] = (
    click.option(
        "--canary", is_flag=True, help="One first; the others only if it has ended well after --soak."
    ),
    click.option("--soak", metavar="TIME", callback=seconds, help="For --canary: 90s, 15m. Default: 60s."),
    click.option(
        "--rate", metavar="N/s|N/m", callback=_per_second, help="At most so many per second, or minute."
    ),
    click.option(
        "--max-waiting",
        type=click.IntRange(1),
        metavar="N",
        help="No more while so many wait in the queue, or so many of the released ones have not ended.",
    ),
    click.option("--keep-going", is_flag=True, help="Go on though a released message has died again."),
    click.option(
        "--keep-counts",
        is_flag=True,
        help="Count its strikes and failures on, not from 0; the old convict no more.",
    ),
    click.option("--after", metavar="TIME", callback=seconds, help="By itself, after so long: 10m, 1h."),
    click.option(
        "--times", type=click.IntRange(1), metavar="N", help="For --after: and again when it comes back."
    ),
    click.option("--cancel", is_flag=True, help="Take --after back: it stays until somebody decides."),
    click.option("--to", metavar="QUEUE", default="", help="To this queue instead of their own."),
)


def care_of(options: dict[str, Any]) -> Care:
    """Take what :data:`careful_options` brought, but for ``to`` and ``keep_counts``, out of ``options``."""
    names = ("canary", "soak", "rate", "max_waiting", "keep_going")
    canary, soak, rate, max_waiting, keep_going = (options.pop(name) for name in names)
    if soak and not canary:
        raise click.UsageError("--soak says for how long a --canary is watched: add --canary")
    return Care(
        canary=canary, soak=soak or SOAK, rate=rate, max_waiting=max_waiting, stop_on_death=not keep_going
    )


def say_refusals(outcomes: Iterable[Outcome]) -> None:
    """Say on stderr who was refused and why; of very many for one reason only how many."""
    refused: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if not outcome.done:
            refused.setdefault(outcome.error, []).append(outcome)
    for error, those in refused.items():
        if len(those) > _SAID:
            say(f"refused  {count_of(len(those), 'message')}: {error}", err=True)
            continue
        for outcome in those:
            whom = "  ".join(part for part in (outcome.id, outcome.task) if part)
            say(f"refused  {whom}: {error}", err=True)
