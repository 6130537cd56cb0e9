"""What holds for the whole fleet, read: policies, blocks, pauses; ``LedgerUnavailable``: Redis is away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, Generic, NamedTuple, TypeVar

from celery_poison.basics.numbers import whole
from celery_poison.errors import ConfigurationError
from celery_poison.ledger.connection import Namespace, clear_errors
from celery_poison.rules.blocks import RuleKind

T = TypeVar("T")

VERSION = "version"


class Versions(NamedTuple):
    """The versions of several hashes, 0 where none was ever changed; and which of several keys are there."""

    numbers: tuple[int, ...]
    there: frozenset[str] = frozenset()


def versions(ledger: Namespace, hashes: Sequence[str], others: Sequence[str]) -> Versions:
    """Return the versions of these hashes, by one small command where there is nothing at all."""
    with clear_errors("reading versions"):
        if not ledger.client.exists(*hashes, *others):
            return Versions((0,) * len(hashes))
        pipe = ledger.client.pipeline(transaction=False)
        for key in hashes:
            pipe.hget(key, VERSION)
        for key in others:
            pipe.exists(key)
        replies = pipe.execute()
    numbers, there = replies[: len(hashes)], replies[len(hashes) :]
    return Versions(tuple(map(number_of, numbers)), frozenset(compress(others, there)))


def version(ledger: Namespace, key: str) -> int:
    """Return the version of what a hash keeps, 0 if none was ever changed; one cheap look.

    Args:
        key: ``keys.policy``, ``keys.blocks`` or ``keys.paused``.
    """
    with clear_errors("reading a version"):
        return number_of(ledger.client.hget(key, VERSION))


def read(ledger: Namespace, key: str) -> tuple[int, dict[str, bytes], float]:
    """Return a hash's version, its fields (name -> JSON, unchecked) and Redis' clock in seconds."""
    with clear_errors("reading policies, blocks or pauses"):
        pipe = ledger.client.pipeline(transaction=False)  # MULTI is refused where Redis is full
        pipe.hgetall(key)
        pipe.time()
        raw, (seconds, micros) = pipe.execute()
    fields: dict[str, Any] = {name.decode("utf-8", "replace"): value for name, value in raw.items()}
    return number_of(fields.pop(VERSION, None)), fields, seconds + micros / 1_000_000


def newer(ledger: Namespace, key: str, than: int) -> tuple[int, dict[str, bytes], float] | None:
    """Return the same where the version is not ``than`` any more; None: nothing has changed."""
    return None if version(ledger, key) == than else read(ledger, key)


class VersionedCopy(Generic[T]):
    """A copy of what a hash keeps, replaced as a whole: one thread refreshes it, any thread asks it.

    Args:
        understand: returns what of the fields is in force at a moment, and why the rest is not usable.
        complain: takes the latter.

    Attributes:
        by_field: field -> what it says.
        at: when it was read, in seconds of Redis' clock.
    """

    def __init__(
        self,
        ledger: Namespace,
        key: str,
        understand: Callable[[Mapping[str, bytes], float], tuple[dict[str, T], list[ConfigurationError]]],
        complain: Callable[[ConfigurationError], object],
    ) -> None:
        self._ledger, self._key = ledger, key
        self._understand, self._complain = understand, complain
        self.version, self.at = 0, 0.0
        self.by_field: Mapping[str, T] = {}

    def refresh(self) -> tuple[dict[str, T], dict[str, T]]:
        """Take over all changes; return what began and what ended, by their fields.

        Raises:
            LedgerUnavailable: Redis is away; the copy stays as it is.
        """
        if (changed := newer(self._ledger, self._key, self.version)) is None:
            return {}, {}
        newest, raw, at = changed
        fields, complaints = self._understand(raw, at)
        for complaint in complaints:
            self._complain(complaint)
        before, self.version, self.by_field, self.at = self.by_field, newest, fields, at
        began = {field: each for field, each in fields.items() if before.get(field) != each}
        return began, {field: each for field, each in before.items() if field not in fields}


def block_field(kind: RuleKind, name: str) -> str:
    """Return where in the hash a rule stands."""
    return f"{kind}:{name}"


def number_of(raw: Any) -> int:
    """Return a version as Redis keeps it; 0 where there is none."""
    return max(0, whole(raw))
