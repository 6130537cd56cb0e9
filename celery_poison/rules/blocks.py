"""What is blocked, as Redis keeps it (NEW-3), and what the pipeline proposes to block and to set (NEW-7).

A rule is about a task or a fingerprint, whose messages may not run; a proposal waits for a person.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from celery_poison.errors import ConfigurationError
from celery_poison.model import Record


class Kind(StrEnum):
    """What a rule goes by."""

    TASK = "task"
    FINGERPRINT = "fingerprint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Record):
    """One entry of the block list.

    Attributes:
        kind: what it goes by.
        name: the task's name, or the fingerprint.
        task: whose messages can match; the empty string: those of any guarded task.
        since, until: seconds since 1970 by Redis' clock; ``until`` None: until somebody unblocks it.
        actor: who blocked it; the empty string: nobody, it was convicted too often.
        convictions: how often, in that case.
    """

    kind: Kind
    name: str
    task: str = ""
    since: float = 0.0
    until: float | None = None
    actor: str = ""
    note: str = ""
    convictions: int = 0

    @property
    def reason(self) -> str:
        """Why it keeps a message from running."""
        by = f"by {self.actor}" if self.actor else f"after {self.convictions} convictions"
        return f"{self.kind} {self.name} is blocked {by}" + (f": {self.note}" if self.note else "")

    @classmethod
    def read(cls, field: str, text: str | bytes) -> Self:
        """Return the rule that one field of the hash holds.

        Raises:
            ValueError: it is not to be understood; a newer version may have written it.
        """
        kind, name, told, known = parts_of(field, text)
        task = name if kind == Kind.TASK else str(told.get("task") or "")
        convictions = int(told.get("convictions") or 0)
        return cls(kind=Kind(kind), name=name, task=task, convictions=convictions, **known)


def is_fingerprint(text: str) -> bool:
    return bool(re.fullmatch("[0-9a-f]{16}", text))


def parts_of(field: str, text: str | bytes) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    """Return kind, name and values of one field of a hash of rules or pauses, and what both know.

    Raises:
        ValueError, TypeError, OverflowError: it is none.
    """
    kind, _, name = field.partition(":")
    told = json.loads(text)
    if not name or not isinstance(told, dict):
        raise ValueError(field)
    since, until = (float(told.get(word) or 0) / 1000 for word in ("since_ms", "until_ms"))
    if not math.isfinite(since + until):
        raise ValueError(text)
    words = {word: str(told.get(word) or "") for word in ("actor", "note")}
    return kind, name, told, {"since": since, "until": until or None, **words}


def read_rules(
    raw: Mapping[str, str | bytes], now: float
) -> tuple[dict[str, Rule], list[ConfigurationError]]:
    """Return the rules in force (by field) at ``now``, and why the rest is not usable."""
    return in_force(Rule.read, raw, now, "block list in Redis, {} is ignored: it is no rule")


def in_force(
    read: Callable[[str, str | bytes], Any], raw: Mapping[str, str | bytes], now: float, ignored: str
) -> tuple[dict[str, Any], list[ConfigurationError]]:
    """Return what of a hash is not over at ``now`` (by field), and why the rest is not usable.

    Args:
        ignored: what is said of a field that ``read`` does not understand.
    """
    found, complaints = {}, []
    for field, text in raw.items():
        try:
            found[field] = read(field, text)
        except (ValueError, TypeError, OverflowError, RecursionError):
            complaints.append(ConfigurationError(ignored.format(field)))
    return {field: each for field, each in found.items() if not each.until or each.until > now}, complaints


# --- proposals ------------------------------------------------------------------------------------


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
        """What this rule does, as a word: the same for every proposal that does it."""
        return f"fingerprint:{self.fingerprint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal(Record):
    """What waits for a person.

    Attributes:
        version: its number; no other proposal ever has it.
        at, until: seconds since 1970 by Redis' clock: when it was first made, and when it is over.
        actor: who, or whose cron job, made it.
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
        """Return what an overview says of it."""
        told = {name: getattr(self, name) for name in ("version", "at", "until", "actor", "caught")}
        return {**told, "rules": len(self.rules), "policy": dict(self.policy)}

    @classmethod
    def read(cls, text: str | bytes | None, now: float) -> Self | None:
        """Return what a stored sheet says; None: there is none, or it is over, or not to be understood."""
        try:
            told = json.loads(text or b"null")
            if not told or told["until_ms"] / 1000 <= now:
                return None
            return cls(
                version=int(told["version"]),
                at=told["at_ms"] / 1000,
                until=told["until_ms"] / 1000,
                actor=str(told["actor"]),
                rules=[_rule(each) for each in told["rules"]],
                policy=dict(told["policy"]),
                reasons=[str(each) for each in told["reasons"]],
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None


def _rule(told: Mapping[str, Any]) -> ProposedRule:
    numbers = {name: int(told.get(name) or 0) for name in ("deaths", "messages", "caught", "innocents")}
    words = {name: str(told[name]) for name in ("fingerprint", "task", "note")}
    values: dict[str, Any] = {**words, **numbers}
    return ProposedRule(**values)


def policy_item(name: str, value: object) -> str:
    """Return what an option of a policy does, as a word."""
    return f"policy:{name}={json.dumps(value)}"


def sheet(
    rules: Sequence[ProposedRule], policy: Mapping[str, Any], reasons: Iterable[str]
) -> tuple[str, str]:
    """Return what is published, as JSON, and its effect: the same for sheets that would do the same.

    The effect of a sheet that would do nothing is empty.
    """
    of_policy = [policy_item(name, value) for name, value in policy.items()]
    items = sorted([*of_policy, *(rule.item for rule in rules)])
    effect = hashlib.sha256("\n".join(items).encode()).hexdigest() if items else ""
    told = {"rules": [asdict(rule) for rule in rules], "policy": dict(policy), "policy_items": of_policy}
    return json.dumps({**told, "reasons": [*reasons]}), effect
