"""Choosing messages: ``task=shop.render cause=signal:9 age>2h`` (all conditions must hold).

Values with blanks are quoted as in a shell: ``reason='*too large*'``.
"""

from __future__ import annotations

import fnmatch
import math
import re
import shlex
import time
from dataclasses import dataclass
from typing import Self

from celery_poison.errors import PoisonError
from celery_poison.ledger.census import Inmate
from celery_poison.model import MessageRecord
from celery_poison.quarantine.groups import group_ids
from celery_poison.settings import did_you_mean

TEXT_FIELDS = ("id", "mid", "task", "queue", "cause", "fingerprint", "worker", "incident", "reason")
NUMBER_FIELDS = ("deliveries", "crashes", "strikes", "failures", "payload_bytes")
AGE = "age"
GROUP = "group"

_CONDITION = re.compile(r"^(\w+)(>=|<=|!=|=|>|<)(.*)$")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class BadFilter(PoisonError):
    """A condition names no field, compares what cannot be compared, or has no value."""


@dataclass(frozen=True, slots=True)
class Condition:
    field: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _CONDITION.match(text)
        if match is None:
            raise BadFilter(f"{text!r} is no condition: write field=value, for example task=shop.render")
        condition = cls(*match.groups())
        condition._check(text)
        return condition

    def _check(self, text: str) -> None:
        fields = (*TEXT_FIELDS, *NUMBER_FIELDS, AGE, GROUP)
        if self.field not in fields:
            raise BadFilter(f"{text!r}: no field {self.field!r}{did_you_mean(self.field, fields)}")
        if self.field in NUMBER_FIELDS or self.field == AGE:
            self._number()
        elif self.operator not in ("=", "!="):
            raise BadFilter(f"{text!r}: {self.field} is text, compare it with = or !=")

    def _number(self) -> float:
        try:
            text, unit = (
                (self.value[:-1], _SECONDS[self.value[-1:]]) if self.field == AGE else (self.value, 1)
            )
            number = float(text) * unit
            if math.isfinite(number):
                return number
            raise ValueError(number)
        except (ValueError, KeyError):
            wanted = "a number with s, m, h or d" if self.field == AGE else "a number"
            raise BadFilter(f"{self.field}{self.operator}{self.value}: use {wanted}") from None

    def matches(self, record: MessageRecord | Inmate, now: float) -> bool:
        if self.field == GROUP:
            return (self.value in group_ids(record)) == (self.operator == "=")
        if self.field in TEXT_FIELDS:
            same = fnmatch.fnmatchcase(getattr(record, self.field), self.value)
            return same if self.operator == "=" else not same
        since = record.quarantined_at or record.first_seen or now
        actual = now - since if self.field == AGE else getattr(record, self.field)
        wanted = self._number()
        match self.operator:
            case "=":
                return bool(actual == wanted)
            case "!=":
                return bool(actual != wanted)
            case ">":
                return bool(actual > wanted)
            case "<":
                return bool(actual < wanted)
            case ">=":
                return bool(actual >= wanted)
            case _:
                return bool(actual <= wanted)


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that must all hold; text values may use ``*`` and ``?``."""

    conditions: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, *texts: str) -> Self:
        """Read conditions separated by blanks or given apart.

        Raises:
            BadFilter: see there; also an empty text, which would otherwise choose everything.
        """
        return cls(tuple(Condition.parse(word) for text in texts for word in _words(text)))

    @classmethod
    def of_group(cls, group: str) -> Self:
        """Return the filter for one group's messages, by its id."""
        return cls((Condition(GROUP, "=", group),))

    def of_the_census(self) -> Self | None:
        """Return those conditions that a census can answer, so that few records need be read; None: none."""
        conditions = tuple(found for found in self.conditions if found.field in (*Inmate._fields, AGE, GROUP))
        return type(self)(conditions) if conditions else None

    def matches(self, record: MessageRecord | Inmate) -> bool:
        now = time.time()
        return all(condition.matches(record, now) for condition in self.conditions)


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadFilter(f"{text!r}: {error}") from None
    if not words:
        raise BadFilter("an empty filter: write field=value, for example task=shop.render")
    return words
