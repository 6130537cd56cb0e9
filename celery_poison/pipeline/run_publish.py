"""``pipeline publish``: propose block rules, put them in force, or take them back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from celery_poison.errors import ConfigurationError
from celery_poison.ledger import Keys, Ledger, published
from celery_poison.ledger.connection import open_redis
from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.plain import plain_rows
from celery_poison.pipeline.publish import LEAST_MESSAGES, proposals, sheet
from celery_poison.pipeline.run_backtest import replayed
from celery_poison.pipeline.telling import clean
from celery_poison.quarantine.actor import default_actor

HELP = """Make block rules of what was proven, and propose them; --apply puts them in force.

\b
celery -A proj poison pipeline publish --lake /data/poison             propose, and show what
celery -A proj poison pipeline publish --lake /data/poison --apply     workers obey within a heartbeat
celery -A proj poison pipeline publish --show                          what is proposed at the moment
celery -A proj poison pipeline publish --rollback                      take all of it back

A rule is never made for a fingerprint of which any message ever ended alive.
"""
OPTIONS = (
    click.Option(["--apply"], is_flag=True, help="Put the rules in force, instead of proposing them."),
    click.Option(["--rollback"], is_flag=True, help="Take back what was put in force, and the proposal."),
    click.Option(["--show"], is_flag=True, help="Show the stored proposal, and change nothing."),
    click.Option(
        ["--hours"],
        type=click.FloatRange(0, min_open=True),
        default=168.0,
        show_default=True,
        help="Of validity.",
    ),
    click.Option(
        ["--least"],
        type=click.IntRange(1),
        default=LEAST_MESSAGES,
        show_default=True,
        help="Messages of a fingerprint that must have been proven guilty.",
    ),
    click.Option(["--actor"], help="Who does this; default: your login."),
)


def run_without_spark(options: Mapping[str, Any]) -> bool:
    """Do what asks the ledger alone (``--show``, ``--rollback``); return whether that was all."""
    if options["show"] + options["rollback"] + options["apply"] > 1:
        raise ConfigurationError("--show, --apply and --rollback go one at a time")
    if not (options["show"] or options["rollback"]):
        return False
    with _ledger(options) as ledger:
        if options["show"]:
            _tell(published.proposed(ledger) or {"rules": [], "policy": {}, "reasons": []}, options)
        else:
            _tell({"taken_back": ledger.retract(_actor(options))}, options)
    return True


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> dict[str, Any]:
    """Publish in one step of the ledger; print what was done."""
    with _ledger(options) as ledger:
        told = _publish(ledger, Derived(session, lake), options, _actor(options))
    _tell(told, options)
    return told


@contextmanager
def _ledger(options: Mapping[str, Any]) -> Iterator[Ledger]:
    if not options.get("url"):
        raise ConfigurationError("publish needs the ledger: an app, or --redis URL")
    with open_redis(options["url"], {"master_name": options.get("master_name")}) as client:
        yield Ledger(client, Keys(options.get("namespace") or "poison"))


def _actor(options: Mapping[str, Any]) -> str:
    return options.get("actor") or default_actor()


def _publish(ledger: Ledger, derived: Derived, options: Mapping[str, Any], actor: str) -> dict[str, Any]:
    outcomes, best = replayed(derived)
    rules = proposals(plain_rows(derived["fingerprints"]), outcomes, options["least"])
    made = sheet(rules, best)
    force, lasts_ms = bool(options.get("apply")), round(options["hours"] * 3_600_000)
    version, count = ledger.publish(made, force=force, lasts_ms=lasts_ms, actor=actor)
    waiting = published.proposed(ledger)
    told = {"version": version, "applied": count, "waits_for_a_person": waiting is not None}
    return {**told, **json.loads(made)}


def _tell(told: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    click.echo(json.dumps(told, indent=2) if options.get("as_json") else _words(told))


def _words(told: Mapping[str, Any]) -> str:
    if "taken_back" in told:
        return f"took back {told['taken_back']} rules"
    if "version" not in told:
        return "nothing is proposed"
    lines = [f"fingerprint {rule['fingerprint']} of {rule['task']}: {rule['note']}" for rule in told["rules"]]
    lines += [f"policy: {name}={value}" for name, value in told["policy"].items()]
    # A sheet that is only shown was not published by this command, and waits.
    done = (
        "proposed; --apply puts it in force"
        if told.get("waits_for_a_person", True)
        else f"{told['applied']} in force"
    )
    lines = [*lines, f"version {told['version']}: {len(told['rules'])} rules, {done}"]
    return "\n".join(map(clean, lines))
