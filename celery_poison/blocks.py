"""What is blocked, as Redis keeps it: tasks and fingerprints whose messages may not run (NEW-3)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from celery_poison.errors import ConfigurationError


class Kind(StrEnum):
    """What a rule goes by."""

    TASK = "task"
    FINGERPRINT = "fingerprint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
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
        """What a message is told that it keeps from running."""
        by = f"by {self.actor}" if self.actor else f"after {self.convictions} convictions"
        return f"{self.kind} {self.name} is blocked {by}" + (f": {self.note}" if self.note else "")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, field: str, text: str | bytes) -> Self:
        """Return the rule that one field of the hash holds.

        Raises:
            ValueError: it is not to be understood; a newer version may have written it.
        """
        kind, _, name = field.partition(":")
        told = json.loads(text)
        if not name or not isinstance(told, dict):
            raise ValueError(field)
        until = _number(told.get("until_ms"))
        return cls(
            kind=Kind(kind),
            name=name,
            task=name if kind == Kind.TASK else _text(told.get("task")),
            since=_number(told.get("since_ms")) / 1000,
            until=until / 1000 if until else None,
            actor=_text(told.get("actor")),
            note=_text(told.get("note")),
            convictions=int(_number(told.get("convictions"))),
        )


def is_fingerprint(text: str) -> bool:
    return bool(re.fullmatch("[0-9a-f]{16}", text))


def read_rules(
    raw: Mapping[str, str | bytes], now: float
) -> tuple[dict[str, Rule], list[ConfigurationError]]:
    """Return the rules in force (by field) at ``now``, and why the rest is not usable."""
    rules, complaints = {}, []
    for field, text in raw.items():
        try:
            rule = Rule.read(field, text)
        except (ValueError, TypeError, RecursionError):
            complaints.append(ConfigurationError(f"block list in Redis, {field} is ignored: it is no rule"))
            continue
        if rule.until is None or rule.until > now:
            rules[field] = rule
    return rules, complaints


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(value)
    return float(value)
