"""``pipeline publish``: what asks the ledger alone, and making a proposal, which needs Spark (NEW-7)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from celery_poison.basics.text import clean, when
from celery_poison.desk.owner import default_actor
from celery_poison.errors import ConfigurationError, ProposalRefused
from celery_poison.extensions.proposals.proposal import policy_item, sheet
from celery_poison.extensions.proposals.proposals import Proposals
from celery_poison.ledger import Keys, Ledger, policies
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.scripts import Code
from celery_poison.pipeline.publishing import policy_of, proposals, refusals
from celery_poison.policy import EVERY_TASK, entry_of
from celery_poison.rules.blocks import read_rules

if TYPE_CHECKING:
    from celery_poison.pipeline.lake import Lake

_FINGERPRINTS = """
select fingerprint, task, deaths, guilty_messages, alive, cleared from {fingerprints}
where guilty_messages > 0
"""


def decide(options: Mapping[str, Any]) -> bool:
    """Do what asks the ledger alone, and print it; return whether that was all.

    Raises:
        ProposalRefused: what was read is not what waits any more.
    """
    verbs = ("show", "apply", "dismiss", "rollback", "at_once")
    asked = [name for name in verbs if options.get(name)]
    if len(asked) > 1:
        raise ConfigurationError(f"--{', --'.join(asked).replace('_', '-')}: one at a time")
    if options.get("accept_missing") and not options.get("note"):
        raise ConfigurationError(
            "--accept-missing: say why it does not matter, with --note; it is journalled"
        )
    if asked in ([], ["at_once"]):
        return False
    told: dict[str, Any]
    with _ledger(options) as ledger:
        if options.get("show"):
            told = {"proposal": _waiting(ledger)}
        elif options.get("apply"):
            how = {name: bool(options.get(name)) for name in ("rules_only", "replaced")}
            told = {"applied": _apply(ledger, options["apply"], **_who(options), **how)}
        elif options.get("dismiss"):
            Proposals(ledger).dismiss(options["dismiss"], **_who(options))
            told = {"dismissed": options["dismiss"]}
        else:
            rules, policy = Proposals(ledger).retract(**_who(options))
            told = {"taken_back": {"rules": rules, "policy": policy}}
    _tell(options, told)
    return True


def publish(session: Any, lake: Lake, options: Mapping[str, Any]) -> None:
    """Propose what the lake's history supports, or with ``at_once`` put its rules in force; print it.

    Raises:
        ProposalRefused: what the history says cannot be relied on, and why.
    """
    from celery_poison.cli import pipeline_commands
    from celery_poison.pipeline import derived

    with _ledger(options) as ledger:
        tables = derived.Derived(session, lake)
        oldest = timedelta(hours=options.get("max_age", 24.0))
        refused = [*refusals(ledger, tables, oldest, bool(options.get("accept_missing")))]
        if refused:
            raise ProposalRefused("nothing is proposed: " + "; and ".join(refused))
        outcomes, best, reasons, now = pipeline_commands.replayed(tables, options)
        found = proposals(tables.ask(_FINGERPRINTS).to_pylist(), outcomes, options["least"])
        at_once = bool(options.get("at_once"))
        decided = _in_force(ledger) | (set() if options.get("again") else Proposals(ledger).refused_items())
        rules = [rule for rule in found if rule.item not in decided]
        # Without a question only rules are put in force: a policy is for a person to decide.
        wanted = {} if at_once else policy_of(best, now)
        policy = {name: value for name, value in wanted.items() if policy_item(name, value) not in decided}
        as_of, who = tables.as_of.says(), _who(options)
        text, effect = sheet(rules, policy, [as_of, *reasons])
        said = f"{len(rules)} rules, {len(policy)} options, {as_of}"
        said += f": {options['note']}" if options.get("note") else ""
        lasts_ms = round(options["hours"] * 3_600_000)
        code, version = Proposals(ledger).publish(
            text, effect, lasts_ms=lasts_ms, actor=who["actor"], journalled=said
        )
        told: dict[str, Any] = {"decided_before": len(found) - len(rules), "grounds": as_of}
        told["proposal"] = None if code is Code.DONE else _waiting(ledger)
        if at_once and code is not Code.DONE:
            told["applied"] = _apply(ledger, version, **who)
    _tell(options, told)


@contextmanager
def _ledger(options: Mapping[str, Any]) -> Iterator[Ledger]:
    if not options.get("url"):
        raise ConfigurationError("publish needs the ledger: an app, or --redis URL")
    keys = Keys(options.get("namespace") or "poison")
    with open_redis(options["url"], {"master_name": options.get("master_name")}, key=keys.prefix) as client:
        yield Ledger(client, keys)


def _who(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"actor": options.get("actor") or default_actor(), "note": options.get("note") or ""}


def _waiting(ledger: Ledger) -> dict[str, Any] | None:
    waiting = Proposals(ledger).waiting()
    return waiting.as_dict() if waiting else None


def _apply(ledger: Ledger, version: int, **how: Any) -> dict[str, int]:
    rules, options = Proposals(ledger).apply(version, **how)
    return {"version": version, "rules": rules, "options": options}


def _in_force(ledger: Ledger) -> set[str]:
    _, raw, now = policies.read(ledger, ledger.keys.blocks)
    every = entry_of(policies.read(ledger, ledger.keys.policy)[1].get(EVERY_TASK))
    return {*read_rules(raw, now)[0], *(policy_item(name, value) for name, value in every.items())}


def _tell(options: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    click.echo(json.dumps(told, indent=2) if options.get("as_json") else "\n".join(map(clean, _words(told))))


def _words(told: Mapping[str, Any]) -> Iterator[str]:
    proposal, done, back = (told.get(name) for name in ("proposal", "applied", "taken_back"))
    if "dismissed" in told:
        yield f"dismissed  proposal {told['dismissed']}"
    if back:
        policy = ", and the policy is as it was before" if back["policy"] else ""
        yield f"took back {back['rules']} rules{policy}"
    for rule in proposal["rules"] if proposal else ():
        would = f"would have caught {rule['caught']} messages, {rule['innocents']} innocents"
        yield f"fingerprint {rule['fingerprint']} of {rule['task']}: {rule['note']}; {would}"
    if proposal and proposal["policy"]:
        yield from (f"policy of every task: {name}={value}" for name, value in proposal["policy"].items())
        yield from (f"  {reason}" for reason in proposal["reasons"])
    if "grounds" in told:
        yield told["grounds"]
    if done:
        put = f"applied  proposal {done['version']}: {done['rules']} rules in force"
        yield f"{put}, {done['options']} options set" if done["options"] else put
    elif proposal:
        version, until = proposal["version"], when(proposal["until"])
        yield f"proposal {version} waits until {until}: --apply {version}, or --dismiss {version}"
    elif "proposal" in told:
        yield "nothing is proposed"
    if told.get("decided_before"):
        yield f"{told['decided_before']} more are in force already, or a person said no to them"
