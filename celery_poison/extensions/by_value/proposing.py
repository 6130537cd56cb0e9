"""The value that convicted messages share, and nothing else in quarantine does: a hold to propose.

Facts in, conditions out: nothing here knows Redis.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from celery_poison.errors import ConfigurationError
from celery_poison.extensions.by_value.conditions import MISSING, Condition, parse_all

#: Convicted messages that must share a value; characters of a value that is proposed.
ENOUGH, _LONGEST = 3, 60


class Kept(NamedTuple):
    """A message in quarantine.

    Attributes:
        given: the arguments that its publisher gave it, by name; none of them hidden.
    """

    is_convicted: bool
    fingerprint: str
    given: Mapping[str, Any]


class Proposed(NamedTuple):
    """Conditions that so many convicted messages share."""

    where: tuple[str, ...]
    messages: int


def propose(kept: Sequence[Kept]) -> Proposed | None:
    """Return the conditions of a hold that most convicted messages would fall under, and no other; or None.

    The same poison sent three times is none: that is what ``block`` is for. Values that the same messages
    share stand side by side: it is not known which of them is to blame.
    """
    sharing: dict[str, list[int]] = defaultdict(list)
    for number, each in enumerate(kept):
        for name, value in each.given.items():
            if text := _condition(name, value):
                sharing[text].append(number)
    by_messages: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for text, numbers in sharing.items():
        those = [kept[number] for number in numbers]
        is_one = len({each.fingerprint for each in those}) == 1
        if len(those) >= ENOUGH and all(each.is_convicted for each in those) and not is_one:
            by_messages[tuple(numbers)].append(text)
    if not by_messages:
        return None
    most = max(by_messages, key=len)
    return Proposed(tuple(sorted(by_messages[most])), len(most))


def _condition(name: str, value: Any) -> str:
    """Return a value as it is typed in a condition; empty where it is not small and plain."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    if isinstance(value, int) and abs(value) >= 10**18:
        return ""
    text = value if isinstance(value, str) else repr(value)
    if not 0 < len(text) <= _LONGEST or not text.isprintable() or not name.isidentifier() or "'" in text:
        return ""
    quoted = [f"{name}='{text}'"] if isinstance(value, str) else []
    return next((typed for typed in (f"{name}={text}", *quoted) if _is_exactly(typed, name, value)), "")


def _is_exactly(typed: str, name: str, value: Any) -> bool:
    """Whether this is read as one condition, that an argument has this value."""
    try:
        read = Condition.parse(typed)
        is_one = parse_all(typed) == (typed,)
    except ConfigurationError:
        return False
    return is_one and read.path == (name,) and read.holds(value) and not read.holds(MISSING)
