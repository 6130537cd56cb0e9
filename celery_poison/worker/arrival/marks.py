"""The marks that a delivery leaves in the ledger while it is let in, without waiting."""

from __future__ import annotations

from celery_poison.ledger.keys import Keys
from celery_poison.ledger.wire import Wire, command
from celery_poison.records import Start


class Marks:
    """Writes them for one worker."""

    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire = wire
        self._running = keys.running.encode()

    def put(self, mid: str, start: Start) -> None:
        """Overwrite the entry of a delivery that this process is letting in."""
        self._wire.send(command(b"HSET", self._running, mid.encode(), start.encode()))

    def remove(self, mid: str) -> None:
        """Take that entry away again, in the same way."""
        self._wire.send(command(b"HDEL", self._running, mid.encode()))
