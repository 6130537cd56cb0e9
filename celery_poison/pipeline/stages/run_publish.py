"""``pipeline publish``: propose block rules and a policy; apply, dismiss or take back what was proposed.

Only making a proposal needs Spark, of which nothing is imported before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from celery_poison.blocks import Proposal, policy_item, read_rules, sheet
from celery_poison.errors import ConfigurationError, ProposalRefused
from celery_poison.ledger import Keys, Ledger, policies
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.scripts import Code
from celery_poison.policy import EVERY_TASK, entry_of
from celery_poison.quarantine.owner import default_actor
from celery_poison.text import clean, when

if TYPE_CHECKING:
    from celery_poison.pipeline import publish
    from celery_poison.pipeline.lake import Lake

HELP = """Make block rules of what was proven, and propose them; a person applies exactly what was read.

\b
celery -A proj poison pipeline publish --lake /data/poison     propose, and show what
celery -A proj poison pipeline publish --show                  what waits for a person
celery -A proj poison pipeline publish --apply VERSION         put it in force, within a heartbeat
celery -A proj poison pipeline publish --dismiss VERSION       none of it, and not again for 30 days
celery -A proj poison pipeline publish --rollback              take back all that is in force of it

A rule is never made for a fingerprint of which any message ever ended alive. Nothing is proposed where that
cannot be known: healthy runs that are only counted, entries that are missing, tables that are old.
"""
OPTIONS = (
    click.Option(["--show"], is_flag=True, help="Show what waits for a person, and change nothing."),
    click.Option(["--apply"], type=click.IntRange(1), metavar="VERSION", help="Put this proposal in force."),
    click.Option(["--dismiss"], type=click.IntRange(1), metavar="VERSION", help="Drop this proposal."),
    click.Option(["--rollback"], is_flag=True, help="Take back all that was put in force."),
    click.Option(["--rules-only"], is_flag=True, help="With --apply: leave the policy alone."),
    click.Option(["--replaced"], is_flag=True, help="With --apply: even if there is a newer proposal."),
    click.Option(["--at-once"], is_flag=True, help="Put the rules in force without waiting for a person."),
    click.Option(["--again"], is_flag=True, help="Propose what a person said no to, too."),
    click.Option(
        ["--hours"],
        type=click.FloatRange(0, min_open=True),
        default=168.0,
        show_default=True,
        help="How long a proposal waits, and how long its rules hold.",
    ),
    click.Option(
        ["--least"],
        type=click.IntRange(1),
        default=2,
        show_default=True,
        help="Messages of a fingerprint that must have been proven guilty.",
    ),
    click.Option(
        ["--max-age"],
        type=click.FloatRange(0),
        metavar="HOURS",
        default=24.0,
        show_default=True,
        help="Propose nothing of tables that are further behind the journal.",
    ),
    click.Option(
        ["--accept-missing"], is_flag=True, help="Propose although entries are missing; say a --note."
    ),
    click.Option(["--note"], default="", help="Why; is journalled."),
    click.Option(["--actor"], help="Who does this; default: your login."),
)
_ONE_OF = ("show", "apply", "dismiss", "rollback", "at_once")


def run_without_spark(options: Mapping[str, Any]) -> bool:
    """Do what asks the ledger alone; return whether that was all.

    Raises:
        ProposalRefused: what was read is not what waits any more.
    """
    asked = [name for name in _ONE_OF if options.get(name)]
    if len(asked) > 1:
        raise ConfigurationError(f"--{', --'.join(asked).replace('_', '-')}: one at a time")
    if options.get("accept_missing") and not options.get("note"):
        raise ConfigurationError(
            "--accept-missing: say why it does not matter, with --note; it is journalled"
        )
    if asked in ([], ["at_once"]):
        return False
    with _ledger(options) as ledger:
        told = _decide(ledger, asked[0], options)
    _say(told if options.get("as_json") else _words(told), options)
    return True


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> dict[str, Any]:
    """Propose what the lake's history supports, or with ``at_once`` put its rules in force; print it.

    Raises:
        ProposalRefused: what the history says cannot be relied on, and why.
    """
    from celery_poison.pipeline.derived import Derived

    with _ledger(options) as ledger:
        told = _publish(ledger, Derived(session, lake), options)
    _say(told if options.get("as_json") else _words(told), options)
    return told


@contextmanager
def _ledger(options: Mapping[str, Any]) -> Iterator[Ledger]:
    if not options.get("url"):
        raise ConfigurationError("publish needs the ledger: an app, or --redis URL")
    with open_redis(options["url"], {"master_name": options.get("master_name")}) as client:
        yield Ledger(client, Keys(options.get("namespace") or "poison"))


def _who(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"actor": options.get("actor") or default_actor(), "note": options.get("note") or ""}


def _waiting(ledger: Ledger) -> dict[str, Any] | None:
    waiting = Proposal.read(*policies.waiting_proposal(ledger))
    return waiting.as_dict() if waiting else None


def _apply(ledger: Ledger, version: int, **how: Any) -> dict[str, int]:
    rules, options = ledger.apply_proposal(version, **how)
    return {"version": version, "rules": rules, "options": options}


def _decide(ledger: Ledger, verb: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if verb == "show":
        return {"proposal": _waiting(ledger)}
    if verb == "apply":
        how: dict[str, Any] = {name: bool(options.get(name)) for name in ("rules_only", "replaced")}
        return {"applied": _apply(ledger, options["apply"], **_who(options), **how)}
    if verb == "dismiss":
        ledger.dismiss_proposal(options["dismiss"], **_who(options))
        return {"dismissed": options["dismiss"]}
    rules, policy = ledger.retract(**_who(options))
    return {"taken_back": {"rules": rules, "policy": policy}}


def _publish(ledger: Ledger, derived: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    from celery_poison.pipeline import publish
    from celery_poison.pipeline.stages.run_backtest import replayed

    grounds = _grounds(ledger, derived)
    oldest = timedelta(hours=options.get("max_age", 24.0))
    refused = publish.refusals(grounds, datetime.now(UTC), oldest, bool(options.get("accept_missing")))
    if refused:
        raise ProposalRefused("nothing is proposed: " + "; and ".join(refused))
    outcomes, best, now = replayed(derived, options)
    found = publish.proposals(derived.ask(publish.FINGERPRINTS).to_pylist(), outcomes, options["least"])
    at_once = bool(options.get("at_once"))
    decided = _in_force(ledger) | (set() if options.get("again") else policies.refused_items(ledger))
    # What nobody is asked about cannot be more than rules: a policy is for a person.
    wanted = {} if at_once else publish.policy_of(best, now)
    rules, policy = publish.undecided(found, wanted, decided)
    text, effect = sheet(rules, policy, [grounds.as_of, *(best.reasons if best else ())])
    who, lasts_ms = _who(options), round(options["hours"] * 3_600_000)
    said = f"{len(rules)} rules, {len(policy)} options, {grounds.as_of}"
    said += f": {options['note']}" if options.get("note") else ""
    code, version = ledger.publish(text, effect, lasts_ms=lasts_ms, actor=who["actor"], said=said)
    told: dict[str, Any] = {"decided_before": len(found) - len(rules), "grounds": grounds.as_of}
    if code is Code.DONE:
        return {**told, "proposal": None}
    waiting = _waiting(ledger)
    if at_once:
        told["applied"] = _apply(ledger, version, **who)
    return {**told, "proposal": waiting}


def _grounds(ledger: Ledger, derived: Any) -> publish.Grounds:
    """Ask lake and Redis for what a proposal would rest on."""
    from celery_poison.pipeline import publish
    from celery_poison.pipeline.blame import RUNS_ALIVE

    client: Any = ledger.client
    last = client.xrevrange(ledger.keys.journal, count=1)
    return publish.Grounds(
        as_of=derived.as_of.says(),
        upto=derived.as_of.at,
        newest=datetime.fromtimestamp(int(last[0][0].split(b"-")[0]) / 1000, UTC) if last else None,
        missing=derived.left_out,
        counted=sorted(name.decode(errors="replace") for name in client.hkeys(ledger.keys.tally)),
        alive=derived.ask(RUNS_ALIVE)["n"][0].as_py() or 0,
    )


def _in_force(ledger: Ledger) -> set[str]:
    """Return the items that need no proposal: blocked fingerprints, and options that every task has."""
    _, raw, now = policies.read(ledger, ledger.keys.blocks)
    every = entry_of(policies.read(ledger, ledger.keys.policy)[1].get(EVERY_TASK))
    return {*read_rules(raw, now)[0], *(policy_item(name, value) for name, value in every.items())}


def _say(told: Any, options: Mapping[str, Any]) -> None:
    click.echo(json.dumps(told, indent=2) if options.get("as_json") else told)


def _words(told: Mapping[str, Any]) -> str:
    if "dismissed" in told:
        return f"dismissed  proposal {told['dismissed']}"
    if "taken_back" in told:
        policy = ", and the policy is as it was before" if told["taken_back"]["policy"] else ""
        return f"took back {told['taken_back']['rules']} rules{policy}"
    lines = _contents(told["proposal"]) if told.get("proposal") else []
    lines += [told["grounds"]] if "grounds" in told else []
    if "applied" in told:
        done = told["applied"]
        put = f"applied  proposal {done['version']}: {done['rules']} rules in force"
        lines.append(f"{put}, {done['options']} options set" if done["options"] else put)
    elif told["proposal"]:
        version, until = told["proposal"]["version"], when(told["proposal"]["until"])
        lines.append(f"proposal {version} waits until {until}: --apply {version}, or --dismiss {version}")
    else:
        lines.append("nothing is proposed")
    if told.get("decided_before"):
        lines.append(f"{told['decided_before']} more are in force already, or a person said no to them")
    return "\n".join(map(clean, lines))


def _contents(told: Mapping[str, Any]) -> list[str]:
    lines = []
    for rule in told["rules"]:
        would = f"would have caught {rule['caught']} messages, {rule['innocents']} innocents"
        lines.append(f"fingerprint {rule['fingerprint']} of {rule['task']}: {rule['note']}; {would}")
    lines += [f"policy of every task: {name}={value}" for name, value in told["policy"].items()]
    return [*lines, *(f"  {reason}" for reason in told["reasons"] if told["policy"])]
