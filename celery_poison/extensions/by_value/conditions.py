"""Conditions on the arguments of a call: read from what a person types, held against what a publisher sent.

Nothing here is evaluated, and whatever a message has for a value is compared and no more.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from celery_poison.errors import ConfigurationError
from celery_poison.extensions.by_value.signatures import Parameters

#: Characters of a condition, and how many a hold has at most.
LONGEST, MOST = 200, 8
#: The value of an argument that a call does not have.
MISSING = object()

_CONDITION = re.compile(
    r"^\s*([A-Za-z_]\w*(?:\.\w+){0,3})\s*(>=|<=|!=|=|>|<|\bin\b)\s*(\S.*?)\s*$", re.DOTALL
)
_AND = re.compile(r"""\s+and(?:\s+|$)(?=(?:[^'"]|'[^']*'|"[^"]*")*$)""")
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}
_EXAMPLES = "write argument=value, as project_id=42; there are = != < <= > >=, and `in 42,43`"


class Operand(NamedTuple):
    """A value as it was typed, and the number that this may be."""

    text: str
    number: float | int | None

    @classmethod
    def of(cls, typed: str) -> Self:
        if len(typed) > 1 and typed[0] == typed[-1] and typed[0] in "'\"":
            return cls(typed[1:-1], None)
        try:
            return cls(typed, int(typed) if len(typed) < 40 else _finite(typed))
        except ValueError:
            return cls(typed, _finite(typed))

    def equals(self, value: Any) -> bool:
        """Whether a value of a message is this one; a text may be a number, and the other way round."""
        if isinstance(value, str):
            return value == self.text
        if value is None or isinstance(value, bool):
            return _WORDS.get(self.text.lower(), MISSING) is value
        if isinstance(value, (int, float)):
            return self.number is not None and bool(value == self.number)
        return not isinstance(value, (list, tuple, dict)) and str(value) == self.text

    def compares(self, how: Callable[[Any, Any], bool], value: Any) -> bool:
        """Whether a value of a message is less, or more: numbers by their size, texts by their letters."""
        if isinstance(value, str):
            return self.number is None and how(value, self.text)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return self.number is not None and how(value, self.number)


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of one argument.

    Attributes:
        path: the argument's name; behind it the keys into it, where it is an object.
    """

    path: tuple[str, ...]
    operator: str
    operands: tuple[Operand, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read it.

        Raises:
            ConfigurationError: it is none; the sentence names what was typed, and the cure.
        """
        match = _CONDITION.match(text) if len(text) <= LONGEST else None
        if match is None:
            raise ConfigurationError(f"{text[:LONGEST]!r} is no condition: {_EXAMPLES}")
        name, compared, value = match.groups()
        if value[0] in "=<>":
            how = compared + value[0]
            raise ConfigurationError(f"{text!r} compares by {how!r}, which is none: {_EXAMPLES}")
        texts = [each.strip() for each in value.split(",")] if compared == "in" else [value]
        operands = tuple(map(Operand.of, filter(None, texts)))
        if not operands:
            raise ConfigurationError(f"{text!r} names no value: {_EXAMPLES}")
        return cls(tuple(name.split(".")), compared, operands)

    def holds(self, value: Any) -> bool:
        """Whether it holds for the value of its argument; never for one that is not there."""
        for key in self.path[1:]:
            value = value.get(key, MISSING) if isinstance(value, dict) else MISSING
        if value is MISSING:
            return False
        first = self.operands[0]
        match self.operator:
            case "=" | "in":
                return any(each.equals(value) for each in self.operands)
            case "!=":
                return not isinstance(value, (list, tuple, dict)) and not first.equals(value)
        return first.compares(_ORDER[self.operator], value)


def parse_all(texts: str | Iterable[str]) -> tuple[str, ...]:
    """Return the conditions in some texts, each as it was typed; ``and`` stands between several in one.

    Raises:
        ConfigurationError: one is none, or there are too many or too long ones, or none at all.
    """
    texts = [texts] if isinstance(texts, str) else [*texts]
    if (length := max(map(len, texts), default=0)) > LONGEST * MOST:
        raise ConfigurationError(f"conditions of {length} characters: {LONGEST * MOST} are allowed")
    typed = tuple(each.strip() for text in texts for each in _AND.split(text))
    if not typed:
        raise ConfigurationError(f"a hold needs a condition: {_EXAMPLES}")
    if len(typed) > MOST:
        raise ConfigurationError(f"a hold of {len(typed)} conditions: {MOST} are allowed")
    for each in typed:
        Condition.parse(each)
    return typed


class Check(NamedTuple):
    """The conditions of one hold, bound to the signature of one task.

    Attributes:
        number: of the hold.
        tests: name, place and default of each argument, and what must hold for it.
    """

    number: int
    tests: Sequence[tuple[str, int, Any, Callable[[Any], bool]]]

    @classmethod
    def of(cls, number: int, where: Iterable[Condition], parameters: Parameters) -> Self | None:
        """Bind conditions to a signature; None: no call of it has all of these arguments."""
        tests = []
        for condition in where:
            name = condition.path[0]
            if not parameters.takes(name):
                return None
            default = parameters.defaults.get(name, MISSING)
            tests.append((name, parameters.places.get(name, -1), default, condition.holds))
        return cls(number, tests)

    def holds(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether all of them hold for a call."""
        for name, place, default, test in self.tests:
            given = args[place] if 0 <= place < len(args) else default
            if not test(kwargs.get(name, given)):
                return False
        return True


def call_of(payload: Any) -> tuple[Sequence[Any], Mapping[str, Any]] | None:
    """Return the arguments in a decoded body, of either version of Celery's protocol; None: it has none."""
    if isinstance(payload, (list, tuple)) and len(payload) > 1:
        args, kwargs = payload[0], payload[1]
    elif isinstance(payload, dict):
        args, kwargs = payload.get("args"), payload.get("kwargs")
    else:
        return None
    return (args, kwargs) if isinstance(args, (list, tuple)) and isinstance(kwargs, dict) else None
