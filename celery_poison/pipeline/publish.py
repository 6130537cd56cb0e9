"""From the history back into the workers: block rules that never hurt an innocent (NEW-7)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from celery_poison.pipeline.backtest.grid import NOW, Recommendation, changes
from celery_poison.pipeline.backtest.replay import Outcome
from celery_poison.policy import OVERRIDABLE

#: Without its own decision nobody needs a longer list: workers hold each rule.
MOST_RULES = 500
#: A fingerprint must have been proven guilty in so many different messages.
LEAST_MESSAGES = 2
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Proposal:
    """One rule: messages of ``task`` that bear ``fingerprint`` go to quarantine on arrival."""

    fingerprint: str
    task: str
    note: str


def proposals(
    fingerprints: Iterable[Mapping[str, Any]], outcomes: Iterable[Outcome], least: int = LEAST_MESSAGES
) -> list[Proposal]:
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
    return [Proposal(row["fingerprint"], row["task"] or "", _note(row)) for row in sure[:MOST_RULES]]


def sheet(rules: Iterable[Proposal], recommended: Recommendation | None) -> str:
    """Return what is published, as JSON."""
    policy: dict[str, Any] = {}
    if recommended is not None:
        differs = changes(NOW, recommended.policy)
        policy = {name: value for name, value in differs.items() if name in OVERRIDABLE}
    reasons = [*recommended.reasons] if recommended is not None else []
    return json.dumps({"rules": [asdict(rule) for rule in rules], "policy": policy, "reasons": reasons})


def _note(row: Mapping[str, Any]) -> str:
    return f"pipeline: {row['deaths']} deaths by {row['guilty_messages']} messages, none ever ended alive"
