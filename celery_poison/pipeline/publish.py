"""From the history back into the workers: block rules that never hurt an innocent (NEW-7)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from celery_poison.blocks import ProposedRule, policy_item
from celery_poison.pipeline.backtest.grid import NOW, Recommendation, changes
from celery_poison.pipeline.backtest.replay import Outcome, Policy
from celery_poison.policy import OVERRIDABLE

#: Without its own decision nobody needs a longer list: workers hold each rule.
MOST_RULES = 500
#: A fingerprint must have been proven guilty in so many different messages.
LEAST_MESSAGES = 2
#: The policy of the back-test that blocks soonest says what a rule would have caught.
SOONEST = Policy(block_fingerprint_after=1)
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


def proposals(
    fingerprints: Iterable[Mapping[str, Any]], outcomes: Sequence[Outcome], least: int = LEAST_MESSAGES
) -> list[ProposedRule]:
    """Return the rules that history supports, those that would have spared most first.

    Never one for a fingerprint of which a single message ever ended alive or was cleared by a trial, nor one
    that kept an innocent from running under any policy of the back-test.

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


def policy_of(recommended: Recommendation | None) -> dict[str, Any]:
    """Return what can be set at run time of a recommended policy, where it is not as it is.

    To block by fingerprint is none of it where that kept an innocent from running.
    """
    differs = changes(NOW, recommended.policy) if recommended is not None else {}
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
