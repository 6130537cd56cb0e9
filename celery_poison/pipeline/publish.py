"""From the history back into the workers: block rules that never hurt an innocent (NEW-7)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_poison.blocks import ProposedRule, policy_item
from celery_poison.pipeline.backtest.grid import Recommendation
from celery_poison.pipeline.backtest.in_force import DEFAULTS, InForce
from celery_poison.pipeline.backtest.replay import Outcome, Policy
from celery_poison.policy import OVERRIDABLE

#: Without its own decision nobody needs a longer list: workers hold each rule.
MOST_RULES = 500
#: A fingerprint must have been proven guilty in so many different messages.
LEAST_MESSAGES = 2
#: The policy of the back-test that blocks soonest says what a rule would have caught.
SOONEST = Policy(block_fingerprint_after=1)
#: What :func:`proposals` reads.
FINGERPRINTS = """
select fingerprint, task, deaths, guilty_messages, alive, cleared from {fingerprints}
where guilty_messages > 0
"""
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Grounds:
    """What a proposal would rest on.

    Attributes:
        as_of: of which history the tables are, in words.
        upto: time of the newest entry in them; None: the lake is empty.
        newest: time of the newest entry in Redis; None: there is none.
        missing: sentences on entries that never came into the lake, or cannot be read.
        counted: tasks of which Redis only counts healthy runs (``poison_journal="incidents"``).
        alive: runs in the tables that ended alive.
    """

    as_of: str
    upto: datetime | None
    newest: datetime | None
    missing: Sequence[str] = ()
    counted: Sequence[str] = ()
    alive: int = 1


def refusals(grounds: Grounds, now: datetime, oldest: timedelta, accept_missing: bool = False) -> list[str]:
    """Return why nothing may be proposed on these grounds, each with its cure; empty: it may.

    A rule says that no message of a fingerprint ever ended alive. That cannot be known where runs that ended
    alive are not written down, or are missing, or came after the tables were made.

    Args:
        oldest: by how much the tables may be behind the journal.
        accept_missing: a person has looked at what is missing.
    """
    return [
        *_unwritten(grounds),
        *_stale(grounds, now, oldest),
        *([] if accept_missing else _missing(grounds)),
    ]


def _unwritten(grounds: Grounds) -> list[str]:
    if grounds.counted:
        names = ", ".join(grounds.counted[:5]) + (", …" if len(grounds.counted) > 5 else "")
        return [
            f'healthy runs of {names} were only counted (poison_journal="incidents"): nobody knows which'
            ' messages ended alive. Set poison_journal="attempts" on every worker, let a history grow, then'
            " delete the counts: redis-cli DEL NAMESPACE:tally"
        ]
    if not grounds.alive:
        return [
            "no run in the lake ended alive, so nobody knows which messages would have: was"
            ' poison_journal="incidents" set, or was the lake begun just now? Set it to "attempts", and let a'
            " history grow"
        ]
    return []


def _stale(grounds: Grounds, now: datetime, oldest: timedelta) -> list[str]:
    if grounds.upto is None:
        return ["the lake is empty: run `celery poison pipeline all` first"]
    # A fleet that does nothing has no newer entry, and its tables do not grow old.
    behind = (grounds.newest or now) - grounds.upto
    if behind <= oldest:
        return []
    hours = behind / timedelta(hours=1)
    whose = "the journal in Redis" if grounds.newest else "the clock (the journal in Redis is empty)"
    return [
        f"the tables end {hours:.0f} hours before {whose}, more than --max-age"
        f" {oldest / timedelta(hours=1):g}: run `celery poison pipeline all` first"
    ]


def _missing(grounds: Grounds) -> list[str]:
    return [
        f"{sentence}. A message that would be blocked may have ended alive there. Look at it with `celery"
        " poison pipeline check`; then --accept-missing with a --note goes on without it"
        for sentence in grounds.missing
    ]


def proposals(
    fingerprints: Iterable[Mapping[str, Any]], outcomes: Sequence[Outcome], least: int = LEAST_MESSAGES
) -> list[ProposedRule]:
    """Return the rules that history supports, those that would have spared most first.

    Never one for a fingerprint of which a single message ever ended alive or was cleared by a trial, nor one
    that kept an innocent from running under any policy of the back-test. A message counts that died again
    when it was tried alone.

    Args:
        fingerprints: rows of that table, as mappings.
        least: how many different messages must have been proven guilty.
    """
    wrong: Collection[str] = set().union(*(told.wrong_blocks for told in outcomes))
    sure = [
        row
        for row in fingerprints
        if row["guilty_messages"] >= least
        and not row["alive"]
        and not row["cleared"]
        and row["fingerprint"] not in wrong
        and _FINGERPRINT.fullmatch(row["fingerprint"])
    ]
    sure.sort(key=lambda row: (-row["deaths"], row["fingerprint"]))
    caught = next((told.caught for told in outcomes if told.policy == SOONEST), Counter[str]())
    return [_rule(row, caught[row["fingerprint"]]) for row in sure[:MOST_RULES]]


def policy_of(recommended: Recommendation | None, now: InForce = DEFAULTS) -> dict[str, Any]:
    """Return what can be set at run time of a recommended policy, where it is not as it is ``now``.

    To block by fingerprint is none of it where that kept an innocent from running.
    """
    told = recommended.policy.changes() if recommended is not None else {}
    differs = {name: value for name, value in told.items() if value != getattr(now, name)}
    if recommended is not None and recommended.outcome.wrong_blocks:
        differs.pop("block_fingerprint_after", None)
    return {name: value for name, value in differs.items() if name in OVERRIDABLE}


def undecided(
    rules: Iterable[ProposedRule], policy: Mapping[str, Any], decided: Collection[str]
) -> tuple[list[ProposedRule], dict[str, Any]]:
    """Return what nobody decided about so far.

    Args:
        decided: items that are in force already, or that a person said no to.
    """
    left = {name: value for name, value in policy.items() if policy_item(name, value) not in decided}
    return [rule for rule in rules if rule.item not in decided], left


def _rule(row: Mapping[str, Any], caught: int) -> ProposedRule:
    deaths, messages = row["deaths"], row["guilty_messages"]
    return ProposedRule(
        fingerprint=row["fingerprint"],
        task=row["task"] or "",
        note=f"pipeline: {deaths} deaths by {messages} messages, none ever ended alive",
        deaths=deaths,
        messages=messages,
        caught=caught,
    )
