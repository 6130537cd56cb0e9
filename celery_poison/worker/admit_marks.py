"""The marks that a delivery leaves in the ledger while it is let in, without waiting."""

from __future__ import annotations

from celery_poison.ledger.keys import Keys
from celery_poison.ledger.writer import Writer, command
from celery_poison.model import Phase, Start
from celery_poison.worker.receive import Delivery


class AdmitMarks:
    """Writes them for one worker."""

    def __init__(self, writer: Writer, keys: Keys) -> None:
        self._writer = writer
        self._running = keys.running.encode()

    def put(self, mid: str, start: Start) -> None:
        """Overwrite the entry of a delivery that this process is letting in."""
        self._writer.send(command(b"HSET", self._running, mid.encode(), start.encode()))

    def close(self, delivery: Delivery) -> None:
        """Close the admit mark of a delivery, which was received and decoded, and harmed nobody.

        Before it goes anywhere: where a pool of greenlets is full, that takes as long as somebody's task.
        """
        if delivery.start.phase == Phase.ADMITTING:
            delivery.start = delivery.start.in_phase(Phase.CLAIMED)
            self.put(delivery.mid, delivery.start)

    def remove(self, mid: str) -> None:
        """Take that entry away again, in the same way."""
        self._writer.send(command(b"HDEL", self._running, mid.encode()))
