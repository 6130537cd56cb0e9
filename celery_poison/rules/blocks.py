"""What is blocked, as Redis keeps it (NEW-3): a task or a fingerprint, whose messages may not run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from celery_poison.errors import ConfigurationError
from celery_poison.model import Record


class RuleKind(StrEnum):
    """The property of a message that a rule goes by."""

    TASK = "task"
    FINGERPRINT = "fingerprint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Record):
    """One entry of the block list.

    Attributes:
        kind: what it goes by.
        name: the task's name, or the fingerprint.
        task: whose messages can match; the empty string: those of any guarded task.
        since, until: seconds since 1970 by Redis' clock; ``until`` None: until a person unblocks it.
        actor: the person who blocked it; empty: it was convicted too often.
        convictions: how often, in that case.
    """

    kind: RuleKind
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
        task = name if kind == RuleKind.TASK else str(told.get("task") or "")
        convictions = int(told.get("convictions") or 0)
        return cls(kind=RuleKind(kind), name=name, task=task, convictions=convictions, **known)


def is_fingerprint(text: str) -> bool:
    return bool(re.fullmatch("[0-9a-f]{16}", text))


def parts_of(field: str, text: str | bytes) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    """Return kind, name and values of one field of a hash of rules or pauses, and what both know.

    Raises:
        ValueError, TypeError, OverflowError: it is none.
    """
    kind, _, name = field.partition(":")
    fields = json.loads(text)
    if not name or not isinstance(fields, dict):
        raise ValueError(field)
    since, until = (float(fields.get(word) or 0) / 1000 for word in ("since_ms", "until_ms"))
    if not math.isfinite(since + until):
        raise ValueError(text)
    words = {word: str(fields.get(word) or "") for word in ("actor", "note")}
    return kind, name, fields, {"since": since, "until": until or None, **words}


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
    rules, complaints = {}, []
    for field, text in raw.items():
        try:
            rules[field] = read(field, text)
        except (ValueError, TypeError, OverflowError, RecursionError):
            complaints.append(ConfigurationError(ignored.format(field)))
    return {field: each for field, each in rules.items() if not each.until or each.until > now}, complaints
