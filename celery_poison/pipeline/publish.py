"""From the history back into the workers: block rules that never hurt an innocent (NEW-7).

Only making a proposal needs Spark, of which nothing is imported before.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from celery_poison.basics.text import clean, when
from celery_poison.errors import ConfigurationError, ProposalRefused
from celery_poison.extensions.proposals.proposal import ProposedRule, policy_item, sheet
from celery_poison.extensions.proposals.proposals import Proposals
from celery_poison.ledger import Keys, Ledger, policies
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.scripts import Code
from celery_poison.pipeline.replay import DEFAULTS, InForce, Outcome, Policy
from celery_poison.policy import EVERY_TASK, OVERRIDABLE, entry_of
from celery_poison.quarantine.owner import default_actor
from celery_poison.rules.blocks import is_fingerprint, read_rules

if TYPE_CHECKING:
    from celery_poison.pipeline.derived import Derived
    from celery_poison.pipeline.lake import Lake

#: Without its own decision nobody needs a longer list: workers hold each rule.
MOST_RULES = 500
#: The policy of the back-test that blocks soonest says what a rule would have caught.
SOONEST: Policy = {"block_fingerprint_after": 1}
_FINGERPRINTS = """
select fingerprint, task, deaths, guilty_messages, alive, cleared from {fingerprints}
where guilty_messages > 0
"""
_COUNTED = (
    'healthy runs of {} were only counted (poison_journal="incidents"): nobody knows which messages ended'
    ' alive. Set poison_journal="attempts" on every worker, let a history grow, then delete the counts:'
    " redis-cli DEL NAMESPACE:tally"
)
_NONE_ALIVE = (
    "no run in the lake ended alive, so nobody knows which messages would have: was"
    ' poison_journal="incidents" set, or was the lake begun just now? Set it to "attempts", and let a history'
    " grow"
)


def refusals(
    ledger: Ledger, derived: Derived, oldest: timedelta, accept_missing: bool = False
) -> Iterator[str]:
    """Return why nothing may be proposed, each with its cure; nothing: it may.

    A rule says that no message of a fingerprint ever ended alive. That cannot be known where runs that ended
    alive are not written down, or are missing, or came after the tables were made.

    Args:
        oldest: by how much the tables may be behind the journal.
        accept_missing: a person has looked at what is missing.
    """
    from celery_poison.pipeline.blame import RUNS_ALIVE

    client: Any = ledger.client
    counted = sorted(name.decode(errors="replace") for name in client.hkeys(ledger.keys.tally))
    if counted:
        names = ", ".join(counted[:5]) + (", …" if len(counted) > 5 else "")
        yield _COUNTED.format(names)
    elif not derived.ask(RUNS_ALIVE)["n"][0].as_py():
        yield _NONE_ALIVE
    newest = client.xrevrange(ledger.keys.journal, count=1)
    # A fleet that does nothing has no newer entry, and its tables do not grow old.
    now = (
        datetime.fromtimestamp(int(newest[0][0].split(b"-")[0]) / 1000, UTC) if newest else datetime.now(UTC)
    )
    if derived.as_of.at is None:
        yield "the lake is empty: run `celery poison pipeline all` first"
    elif (behind := now - derived.as_of.at) > oldest:
        whose = "the journal in Redis" if newest else "the clock (the journal in Redis is empty)"
        yield (
            f"the tables end {behind / timedelta(hours=1):.0f} hours before {whose}, more than --max-age"
            f" {oldest / timedelta(hours=1):g}: run `celery poison pipeline all` first"
        )
    for sentence in () if accept_missing else derived.left_out:
        yield (
            f"{sentence}. A message that would be blocked may have ended alive there. Look at it with `celery"
            " poison pipeline check`; then --accept-missing with a --note goes on without it"
        )


def proposals(
    fingerprints: Iterable[Mapping[str, Any]], outcomes: Sequence[Outcome], least: int = 2
) -> list[ProposedRule]:
    """Return the rules that history supports, those that would have spared most first.

    Never one for a fingerprint of which a single message ever ended alive or was cleared by a trial, nor one
    that kept an innocent from running under any policy of the back-test. A message counts that died again
    when it was tried alone.

    Args:
        fingerprints: rows of that table, as mappings.
        least: how many different messages must have been proven guilty.
    """
    wrong = {fingerprint for told in outcomes for fingerprint in told.wrong_blocks}
    caught = next((told.caught for told in outcomes if told.policy == SOONEST), Counter[str]())
    sure = [
        row
        for row in fingerprints
        if row["guilty_messages"] >= least
        and not (row["alive"] or row["cleared"] or row["fingerprint"] in wrong)
        and is_fingerprint(row["fingerprint"])
    ]
    sure.sort(key=lambda row: (-row["deaths"], row["fingerprint"]))
    words = "pipeline: {deaths} deaths by {guilty_messages} messages, none ever ended alive"
    return [
        ProposedRule(
            fingerprint=row["fingerprint"],
            task=row["task"] or "",
            note=words.format(**row),
            deaths=row["deaths"],
            messages=row["guilty_messages"],
            caught=caught[row["fingerprint"]],
        )
        for row in sure[:MOST_RULES]
    ]


def policy_of(best: Outcome, now: InForce = DEFAULTS) -> dict[str, Any]:
    """Return what can be set at run time of a recommended policy, where it is not as it is ``now``.

    To block by fingerprint is none of it where that kept an innocent from running.
    """
    left_out = {"block_fingerprint_after"} if best.wrong_blocks else set()
    return {
        name: value
        for name, value in best.policy.items()
        if name in OVERRIDABLE and name not in left_out and value != getattr(now, name)
    }


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
    from celery_poison.pipeline import commands, derived

    with _ledger(options) as ledger:
        tables = derived.Derived(session, lake)
        oldest = timedelta(hours=options.get("max_age", 24.0))
        refused = [*refusals(ledger, tables, oldest, bool(options.get("accept_missing")))]
        if refused:
            raise ProposalRefused("nothing is proposed: " + "; and ".join(refused))
        outcomes, best, reasons, now = commands.replayed(tables, options)
        found = proposals(tables.ask(_FINGERPRINTS).to_pylist(), outcomes, options["least"])
        at_once = bool(options.get("at_once"))
        decided = _in_force(ledger) | (set() if options.get("again") else Proposals(ledger).refused_items())
        rules = [rule for rule in found if rule.item not in decided]
        # What nobody is asked about cannot be more than rules: a policy is for a person.
        wanted = {} if at_once else policy_of(best, now)
        policy = {name: value for name, value in wanted.items() if policy_item(name, value) not in decided}
        as_of, who = tables.as_of.says(), _who(options)
        text, effect = sheet(rules, policy, [as_of, *reasons])
        said = f"{len(rules)} rules, {len(policy)} options, {as_of}"
        said += f": {options['note']}" if options.get("note") else ""
        lasts_ms = round(options["hours"] * 3_600_000)
        code, version = Proposals(ledger).publish(
            text, effect, lasts_ms=lasts_ms, actor=who["actor"], said=said
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
    with open_redis(options["url"], {"master_name": options.get("master_name")}) as client:
        yield Ledger(client, Keys(options.get("namespace") or "poison"))


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
