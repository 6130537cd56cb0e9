"""Holds by value in the ledger: which there are, what each brought to quarantine, and what waits for it.

``LedgerUnavailable``: Redis is away.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Self

from celery import Celery

from celery_poison.basics.numbers import whole
from celery_poison.basics.text import when
from celery_poison.errors import ConfigurationError, MessageNotFound
from celery_poison.extensions.by_value.conditions import Check, Condition, parse_all
from celery_poison.extensions.by_value.signatures import parameters_of
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.policies import VersionedCopy, read
from celery_poison.ledger.scripts import Code
from celery_poison.model import Record

#: Holds that there may be at a time: each is looked at for every message of its tasks.
MOST = 20
#: Milliseconds for which a hold that is over is listed.
KEPT_MS = 7 * 86_400_000
EVERY_TASK = "*"
_FIELD, _REASON = "hold:", re.compile(r"hold (\d{1,15}): ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueHold(Record):
    """One hold by value.

    Attributes:
        number: its name.
        where: its conditions, as they were typed; all must hold.
        task: whose messages it catches, a name or a pattern.
        waits: what it catches waits in the ledger, and does not go to quarantine.
        since, until: seconds since 1970 by Redis' clock; ``until`` None: until a person lifts it.
    """

    number: int
    where: tuple[str, ...]
    task: str = EVERY_TASK
    waits: bool = False
    since: float = 0.0
    until: float | None = None
    actor: str = ""
    note: str = ""

    @property
    def words(self) -> str:
        """Return its conditions and tasks, as a person reads them."""
        return " and ".join(self.where) + (f" of {self.task}" if self.task != EVERY_TASK else "")

    @property
    def story(self) -> str:
        """Return the hold as a sentence."""
        until = f" until {when(self.until)}" if self.until else ""
        note = f": {self.note}" if self.note else ""
        return f"hold {self.number}: {self.words}, by {self.actor}{until}{note}"

    def is_over(self, now: float) -> bool:
        """Whether its time has passed: it catches nothing any more."""
        return self.until is not None and self.until <= now

    def check(self, app: Celery, task: str) -> Check | None:
        """Return its conditions, bound to a task's signature; None: no call of it can fall under them."""
        if not fnmatchcase(task, self.task):
            return None
        return Check.of(self.number, map(Condition.parse, self.where), parameters_of(app, task))

    @classmethod
    def read(cls, field: str, text: str | bytes) -> Self:
        """Return the hold in one field of the hash.

        Raises:
            ValueError, TypeError, OverflowError, ConfigurationError: it is not to be understood.
        """
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError(field)
        since, until = (float(fields.get(word) or 0) / 1000 for word in ("since_ms", "until_ms"))
        if not math.isfinite(since + until):
            raise ValueError(field)
        return cls(
            number=int(field.removeprefix(_FIELD)),
            where=parse_all(map(str, fields["where"])),
            task=str(fields.get("task") or EVERY_TASK),
            waits=fields.get("waits") == 1,
            since=since,
            until=until or None,
            **{word: str(fields.get(word) or "") for word in ("actor", "note")},
        )


def read_holds(
    raw: Mapping[str, str | bytes], now: float = 0.0
) -> tuple[dict[str, ValueHold], list[ConfigurationError]]:
    """Return the holds (by field), those that are over, too, and why the rest is not usable."""
    holds, complaints = {}, []
    for field, text in raw.items():
        if not field.startswith(_FIELD):
            continue
        try:
            holds[field] = ValueHold.read(field, text)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, ConfigurationError):
            complaints.append(ConfigurationError(f"holds in Redis, {field} is ignored: it is no hold"))
    return dict(sorted(holds.items(), key=lambda hold: hold[1].number)), complaints


def brought_by(reason: str) -> int:
    """Return the number of the hold that brought a message to quarantine, by its reason; or 0."""
    match = _REASON.match(reason)
    return int(match[1]) if match else 0


class Work(NamedTuple):
    """The work of all workers' holds, ever.

    Attributes:
        looks: messages that were held against conditions.
        nanoseconds: that this took.
        let_go: messages that ran since the ledger could not take them, or that could not be read.
    """

    looks: int = 0
    nanoseconds: int = 0
    let_go: int = 0


class ValueHolds:
    """The holds by value of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.key = ledger.keys.of("value_holds")

    def all(self) -> tuple[list[ValueHold], float]:
        """Return all holds, the oldest first, those that are over, too; and Redis' clock in seconds."""
        _, raw, now = read(self._ledger, self.key)
        return [*read_holds(raw)[0].values()], now

    def copy(self, complain: Any = lambda error: None) -> VersionedCopy[ValueHold]:
        """Return a copy that can be refreshed."""
        return VersionedCopy(self._ledger, self.key, read_holds, complain)

    def key_of(self, hold: ValueHold) -> str:
        """Return the key for which what waits for a hold is parked; nothing stands there."""
        return f"{self.key}:{hold.number}"

    def number_in(self, key: str) -> int:
        """Return the number of the hold for which a message is parked; 0: it waits for something else."""
        return whole(key.removeprefix(f"{self.key}:"))

    def waiting(self) -> dict[str, int]:
        """Return the messages that wait in the ledger for a hold: mid -> its number."""
        awaited, _ = self._ledger.read.awaited_by(mid for mid, _ in self._ledger.read.parked_now())
        return {mid: number for mid, key in awaited.items() if (number := self.number_in(key))}

    def add(self, where: Sequence[str], *, lasts_ms: int, **more: Any) -> int:
        """Catch what falls under ``where`` from now on; return the number of the hold.

        Args:
            lasts_ms: 0: until a person lifts it.
            more: ``task``, ``waits``, ``actor``, ``note``, and ``journalled``, the journal's note.

        Raises:
            ConfigurationError: there are :data:`MOST` of them.
        """
        words: dict[str, Any] = {"where": json.dumps([*where]), "lasts_ms": lasts_ms}
        code, *rest = self._call("add_hold", most=MOST, kept_ms=KEPT_MS, **words, **more)
        if code is Code.HELD:
            raise ConfigurationError(f"there are {MOST} holds by value already: lift one first")
        return int(rest[0])

    def lift(self, number: int, *, actor: str, journalled: str) -> None:
        """Catch nothing by a hold any more.

        Raises:
            MessageNotFound: there is no such hold.
        """
        if self._call("lift_hold", number=number, actor=actor, journalled=journalled)[0] is Code.DONE:
            raise MessageNotFound(f"there is no hold {number}: `hold list` shows them")

    def add_work(self, work: Work) -> None:
        """Count what a worker has done since it did so last."""
        self._call("count_looks", rest=[f"{name}={number}" for name, number in work._asdict().items()])

    def work(self) -> Work:
        """Return the work of all workers."""
        with clear_errors("reading the work of holds by value"):
            raw: Any = self._ledger.client.hmget(self._ledger.keys.of("value_looks"), Work._fields)
        return Work(*map(whole, raw))

    def _call(self, script: str, /, **words: Any) -> list[Any]:
        return self._ledger.scripts.call(f"{__package__}:{script}", **words)
