"""How every transition calls its script, and what comes back in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import redis

from celery_poison.ledger.keys import Keys
from celery_poison.ledger.scripts import Runner


class Caller:
    """Calls scripts with the namespace's keys.

    Args:
        client: from :func:`celery_poison.ledger.connection.open_redis`.
        keys: the namespace's keys.
        journal_maxlen: entries the journal keeps, approximately.
    """

    def __init__(self, client: redis.Redis, keys: Keys, journal_maxlen: int = 1_000_000) -> None:
        self.client = client
        self.keys = keys
        self._maxlen = journal_maxlen
        self._run = Runner(client)
        self._fixed = {name: value for name, value in vars(keys).items() if name != "prefix"}

    def _call(self, name: str, keys: Mapping[str, str], /, *, rest: Any = (), **arguments: Any) -> Any:
        arguments["maxlen"] = self._maxlen
        return self._run(name, {**self._fixed, **keys}, arguments, rest)

    def _call_many(self, name: str, calls: Iterable[tuple[Mapping[str, str], Mapping[str, Any]]]) -> Any:
        return self._run.many(name, (({**self._fixed, **keys}, arguments) for keys, arguments in calls))

    def _of(self, mid: str, id: str) -> dict[str, str]:
        return {"lineage": self.keys.lineage(id), "message": self.keys.message(mid)}


def fence_of(number: int | None) -> str:
    """Return a fencing number as scripts take it; empty for who needs none."""
    return "" if number is None else str(number)


def pairs(flat: Sequence[bytes]) -> dict[str, str]:
    """Return the flat reply of HGETALL as a dictionary of text."""
    words = [word.decode("utf-8", "replace") for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))
