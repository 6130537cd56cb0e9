"""Debts of a decision: written down before that is recorded, paid after it, then crossed off.

After a death in between the active monitor pays. So each is paid at least once; also for a decision that was
made again, since its first maker died.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

from celery_poison.basics.text import decoded
from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger.connection import Namespace, clear_errors

#: Seconds between two looks of the active monitor, and after which it pays what is still owed.
PAUSE, OVERDUE = 5.0, 10.0
#: Of how many it reads at once.
_AT_ONCE = 100


class Owed:
    """One kind of what is owed. Every method raises ``LedgerUnavailable`` when Redis is away or refuses.

    Args:
        key: the hash in which it stands: id -> JSON object, with the time ``at`` beside what is owed.
        pay: takes an id and what is owed; returns False where it cannot be paid yet.
    """

    def __init__(self, ledger: Namespace, key: str, pay: Callable[[str, Mapping[str, Any]], bool]) -> None:
        self._client, self._key, self._pay = ledger.client, key, pay

    @contextmanager
    def owing(self, id: str, what: Mapping[str, Any]) -> Iterator[None]:
        """Owe something while its decision is being recorded, and pay as soon as it is.

        Raises:
            LedgerUnavailable: Redis is away. It stays owed, since the decision may be on record.
        """
        self.owe(id, what)
        try:
            yield
        except LedgerUnavailable:
            raise
        except BaseException:
            self._cross_off(id)
            raise
        self._settle(id, what)

    def pay_late(self) -> int:
        """Pay what has been owed for too long (in the active monitor); return how many were paid."""
        with clear_errors("reading what is owed"):
            _, rows = cast(Any, self._client.hscan(self._key, count=_AT_ONCE))
        late: dict[str, Mapping[str, Any]] = {}
        for id, raw in rows.items():
            with suppress(ValueError, TypeError, LookupError):  # somebody else's
                what = json.loads(raw)
                if time.time() - what["at"] > OVERDUE:
                    late[decoded(id)] = what
        return sum(self._settle(id, what) for id, what in late.items())

    def owe(self, id: str, what: Mapping[str, Any]) -> None:
        """Write down what is owed."""
        with clear_errors("writing down what is owed"):
            self._client.hset(self._key, id, json.dumps({"at": time.time(), **what}, default=str))

    def _settle(self, id: str, what: Mapping[str, Any]) -> bool:
        is_paid = self._pay(id, what)
        if is_paid:
            self._cross_off(id)
        return is_paid

    def _cross_off(self, id: str) -> None:
        with clear_errors("crossing off what is owed"):
            self._client.hdel(self._key, id)
