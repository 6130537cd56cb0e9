"""What the pipeline proposes to block and to set, as Redis keeps it (NEW-7)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from celery_poison.model import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedRule:
    """Messages of ``task`` that bear ``fingerprint`` go to quarantine on arrival.

    Attributes:
        note: why, in a sentence.
        deaths, messages: how many deaths were proven on how many different messages of it.
        caught: messages that the rule would have kept from running, by the back-test.
        innocents: of these, those that would have ended alive; a rule with any is never proposed.
    """

    fingerprint: str
    task: str
    note: str
    deaths: int = 0
    messages: int = 0
    caught: int = 0
    innocents: int = 0

    @property
    def item(self) -> str:
        """Return the effect of this rule, as a word: the same for every proposal that has it."""
        return f"fingerprint:{self.fingerprint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal(Record):
    """A proposal that waits for a person.

    Attributes:
        version: its number; no other proposal ever has it.
        at, until: seconds since 1970 by Redis' clock: when it was first made, and when it is over.
        actor: the person, or the owner of the cron job, that made it.
        policy: option -> value that the back-test recommends for every guarded task.
        reasons: of the policy, in sentences.
    """

    version: int
    at: float
    until: float
    actor: str
    rules: Sequence[ProposedRule]
    policy: Mapping[str, Any]
    reasons: Sequence[str]

    @property
    def caught(self) -> int:
        """Messages that its rules would have kept from running, by the back-test."""
        return sum(rule.caught for rule in self.rules)

    def summary(self) -> dict[str, Any]:
        """Return the proposal as an overview shows it."""
        told = {name: getattr(self, name) for name in ("version", "at", "until", "actor", "caught")}
        return {**told, "rules": len(self.rules), "policy": dict(self.policy)}

    @classmethod
    def read(cls, text: str | bytes | None, now: float) -> Self | None:
        """Return what a stored sheet says; None: there is none, or it is over, or not to be understood."""
        try:
            fields = json.loads(text or b"null")
            if not fields or fields["until_ms"] / 1000 <= now:
                return None
            return cls(
                version=int(fields["version"]),
                at=fields["at_ms"] / 1000,
                until=fields["until_ms"] / 1000,
                actor=str(fields["actor"]),
                rules=[_rule(each) for each in fields["rules"]],
                policy=dict(fields["policy"]),
                reasons=[str(each) for each in fields["reasons"]],
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None


def _rule(fields: Mapping[str, Any]) -> ProposedRule:
    numbers = {name: int(fields.get(name) or 0) for name in ("deaths", "messages", "caught", "innocents")}
    words = {name: str(fields[name]) for name in ("fingerprint", "task", "note")}
    values: dict[str, Any] = {**words, **numbers}
    return ProposedRule(**values)


def policy_item(name: str, value: object) -> str:
    """Return the effect of a policy's option, as a word."""
    return f"policy:{name}={json.dumps(value)}"


def sheet(
    rules: Sequence[ProposedRule], policy: Mapping[str, Any], reasons: Iterable[str]
) -> tuple[str, str]:
    """Return the JSON to publish, and its effect: the same for sheets that would do the same.

    The effect of a sheet that would do nothing is empty.
    """
    of_policy = [policy_item(name, value) for name, value in policy.items()]
    items = sorted([*of_policy, *(rule.item for rule in rules)])
    effect = hashlib.sha256("\n".join(items).encode()).hexdigest() if items else ""
    fields = {"rules": [asdict(rule) for rule in rules], "policy": dict(policy), "policy_items": of_policy}
    return json.dumps({**fields, "reasons": [*reasons]}), effect
