"""Finding messages: by filter (``task=shop.render cause=sigkill age>2h``), by group, by id or its beginning.

All conditions of a filter must hold. Values with blanks are quoted as in a shell: ``reason='*too large*'``.
"""

from __future__ import annotations

import hashlib
import math
import operator
import re
import shlex
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, Self, TypeVar

from celery_poison import causes
from celery_poison.basics.text import did_you_mean
from celery_poison.causes import place_in
from celery_poison.errors import PoisonError
from celery_poison.model import MessageRecord, Record

#: A message, or what many have in common.
T = TypeVar("T")

TEXT_FIELDS = (
    *("id", "mid", "task", "queue", "cause", "fingerprint", "worker", "incident", "where", "reason"),
    "arguments",
)
NUMBER_FIELDS = (
    *("deliveries", "deaths", "crashes", "strikes", "failures", "size", "payload_bytes"),
    "releases_left",
)
AGE = "age"
GROUP = "group"
TEXT = "text"
#: Characters and words of a filter: matching a pattern takes the square of its length.
LONGEST, MOST_WORDS = 1000, 50
#: Seconds of a unit of time, as people write it.
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: What :meth:`Filter.search` looks for a word in: fields of few different values, and of many.
_COMMON, _OWN = ("task", "queue", "cause", "worker", "reason", "actor", "note"), ("id", "mid", "arguments")

_CONDITION = re.compile(r"^(\w+)(>=|<=|!=|=|>|<)(.*)$")
_COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


#: Where a field has another name than the attribute, or comes of several.
_READ_FROM = {
    GROUP: ("task", "cause", "fingerprint"),
    "deaths": ("crashes",),
    "size": ("payload_bytes",),
    "where": ("evidence",),
}


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
            raise BadFilter(
                f"{text!r} is no condition: write field=value, as task=shop.render or arguments=*word*"
            )
        field, compared, value = match.groups()
        fields = (*TEXT_FIELDS, *NUMBER_FIELDS, AGE, GROUP)
        if field not in fields:
            raise BadFilter(f"{text!r}: no field {field!r}{did_you_mean(field, fields)}")
        condition = cls(field, compared, causes.from_short(value) if field == "cause" else value)
        if field in NUMBER_FIELDS or field == AGE:
            condition._number()
        elif compared not in ("=", "!="):
            raise BadFilter(f"{text!r}: {field} is text, compare it with = or !=")
        return condition

    @property
    def reads(self) -> Sequence[str]:
        """The fields of a message that :meth:`choose` reads."""
        if self.field == AGE:
            return ("quarantined_at", "first_seen")
        return (*_COMMON, *_OWN) if self.field == TEXT else _READ_FROM.get(self.field, (self.field,))

    def _number(self) -> float:
        text, unit = (self.value[:-1], self.value[-1:]) if self.field == AGE else (self.value, "s")
        try:
            number = float(text) * UNITS[unit]
            if math.isfinite(number):
                return number
            raise ValueError(number)
        except (ValueError, KeyError):
            wanted = "a number with s, m, h or d" if self.field == AGE else "a number"
            raise BadFilter(f"{self.field}{self.operator}{self.value}: use {wanted}") from None

    def choose(self, messages: Iterable[Any], now: float) -> Iterator[Any]:
        """Yield those that match; each value is judged once, however many messages share it."""
        if self.field == AGE:
            compare, age = _COMPARE[self.operator], self._number()
            return (m for m in messages if compare(now - (m.quarantined_at or m.first_seen or now), age))
        if self.field == TEXT:
            word, common, own = self.value.casefold(), attrgetter(*_COMMON), attrgetter(*_OWN)
            is_common = cache(
                lambda values, cause: word in "\n".join((*values, causes.short(cause))).casefold()
            )
            return (
                m for m in messages if is_common(common(m), m.cause) or word in "\n".join(own(m)).casefold()
            )
        value_of, holds = attrgetter(*self.reads), cache(self._holds)
        return (m for m in messages if holds(value_of(m)))

    def _holds(self, value: Any) -> bool:
        if self.field in NUMBER_FIELDS:
            return bool(_COMPARE[self.operator](value, self._number()))
        if self.field == "where":
            value = place_in(value.source)
        ids = (group_id(*value), group_id(*value[:2])) if self.field == GROUP else ()  # of both its groups
        same = self.value in ids if ids else fnmatchcase(value, self.value)
        return same is (self.operator == "=")


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that must all hold; text values may use ``*`` and ``?``."""

    conditions: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, *texts: str) -> Self:
        """Read conditions separated by blanks or given apart.

        Raises:
            BadFilter: see there; also a text that is too long, or empty: that would choose everything.
        """
        try:
            words = [word for text in texts for word in _words(text)]
            _check_length("", words)
            return cls(tuple(map(Condition.parse, words)))
        except ValueError as error:  # shlex: a quotation without an end
            raise BadFilter(f"{' '.join(texts)!r}: {error}") from None

    @classmethod
    def of(cls, where: Self | str | None) -> Self:
        """Return a filter as it is, read it, or return the one that lets everything through.

        Raises:
            BadFilter: see :meth:`parse`.
        """
        if isinstance(where, str):
            return cls.parse(where)
        return cls() if where is None else where

    @classmethod
    def search(cls, text: str) -> Self:
        """Read what a person types into a search box: conditions, and words that occur anywhere in a record.

        To be used where what was found is seen before anything is done with it.

        Raises:
            BadFilter: a condition is none, or the text is empty.
        """
        try:
            words = _words(text)
        except ValueError:
            words = text.split()
            _check_length(text, words)
        return cls(
            tuple(Condition.parse(w) if _CONDITION.match(w) else Condition(TEXT, "=", w) for w in words)
        )

    @classmethod
    def of_group(cls, group: str) -> Self:
        """Return the filter for one group's messages, by its id."""
        return cls((Condition(GROUP, "=", group),))

    def period(self) -> tuple[float, float | None]:
        """Return the times, in seconds, between which matching messages were quarantined; None: now."""
        now, since, until = time.time(), 0.0, math.inf
        for condition in self.conditions:
            if condition.field == AGE:
                moment = now - condition._number()
                if condition.operator in ("<", "<="):
                    since = max(since, moment)
                elif condition.operator in (">", ">="):
                    until = min(until, moment)
        return since, None if until == math.inf else until

    @property
    def reads(self) -> Iterable[str]:
        """The fields of a message that :meth:`choose` reads."""
        return chain.from_iterable(condition.reads for condition in self.conditions)

    def choose(self, messages: Iterable[T]) -> Iterable[T]:
        """Yield those that match, one after the other."""
        now = time.time()
        for condition in self.conditions:
            messages = condition.choose(messages, now)
        return messages


def _words(text: str) -> list[str]:
    _check_length(text, ())
    words = shlex.split(text)
    _check_length(text, words)
    if not words:
        raise BadFilter("an empty filter: write field=value, for example task=shop.render")
    return words


def _check_length(text: str, words: Sequence[str]) -> None:
    if len(text) > LONGEST:
        raise BadFilter(f"a filter of {len(text)} characters: {LONGEST} are read at most")
    if len(words) > MOST_WORDS:
        raise BadFilter(f"a filter of {len(words)} words: {MOST_WORDS} are read at most")


class By(StrEnum):
    """How finely messages are grouped."""

    FINGERPRINT = "fingerprint"
    """task, cause and fingerprint"""
    CAUSE = "cause"
    """task and cause, and what was raised, of what is kept for that"""

    def told_by(self, cause: str, fingerprint: str) -> str | None:
        """Return the fingerprint where messages are grouped by it; None where it makes no difference."""
        # The fingerprint of a kept failure stands for exception and place.
        fine = self is By.FINGERPRINT or (cause == causes.FAILURE and fingerprint)
        return fingerprint if fine else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Record):
    """One group, counted.

    Attributes:
        group: its id: the same as long as task, cause and fingerprint are, everywhere.
        fingerprint: empty where it makes no difference, or is not known.
        count: messages in quarantine.
        relapsed: those of them that had been released before, and died again.
        first_seen: when what is in quarantine for longest entered the ledger, in seconds since 1970.
        last_seen: when the newest came to quarantine.
        newest: the mid of that one.
    """

    group: str
    task: str
    cause: str
    fingerprint: str
    count: int
    relapsed: int
    first_seen: float
    last_seen: float
    newest: str


def group_id(task: str, cause: str, fingerprint: str | None = None) -> str:
    """Return the id of a group; without a fingerprint that of all messages of this task and cause."""
    words = (task, cause) if fingerprint is None else (task, cause, fingerprint)
    # Tagged by their number, so that no fingerprint, not even an empty one, makes two groups one.
    tagged = "\0".join((str(len(words)), *words))
    return hashlib.sha256(tagged.encode("utf-8", "replace")).hexdigest()[:12]


def grouped(messages: Iterable[MessageRecord], by: By = By.FINGERPRINT) -> list[Group]:
    """Count messages by group, the largest group first, of equal ones the one with the newest message."""
    groups: dict[tuple[str, str, str | None], Count] = defaultdict(Count)
    for message in messages:
        fingerprint = by.told_by(message.cause, message.fingerprint)
        arrived = message.quarantined_at or message.first_seen or 0.0
        groups[message.task, message.cause, fingerprint].add(
            1, message.releases > 0, message.first_seen or arrived, arrived, message.mid
        )
    return ranked(count.group(*key) for key, count in groups.items())


def ranked(groups: Iterable[Group]) -> list[Group]:
    """Return the largest group first, of equal ones the one with the newest message."""
    return sorted(groups, key=lambda group: (-group.count, -group.last_seen, group.group))


class Count:
    """The count of one group so far."""

    __slots__ = ("count", "first_seen", "last_seen", "newest", "relapsed")

    def __init__(self) -> None:
        self.count = self.relapsed = 0
        self.first_seen, self.last_seen, self.newest = math.inf, -1.0, ""

    def add(self, count: int, relapsed: int, first_seen: float, last_seen: float, newest: str) -> None:
        """Add messages; the attributes are those of :class:`Group`."""
        self.count += count
        self.relapsed += relapsed
        self.first_seen = min(self.first_seen, first_seen)
        if last_seen > self.last_seen:
            self.last_seen, self.newest = last_seen, newest

    def group(self, task: str, cause: str, fingerprint: str | None) -> Group:
        counted = {name: getattr(self, name) for name in self.__slots__}
        id = group_id(task, cause, fingerprint)
        return Group(group=id, task=task, cause=cause, fingerprint=fingerprint or "", **counted)
