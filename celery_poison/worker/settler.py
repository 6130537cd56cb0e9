"""Forgets acknowledged starts, a little late and many at a time.

Late, because an acknowledgement may be lost together with its connection: the copy that the broker
then delivers again is recognised by the start that is still on record.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from celery_poison.ledger import Ledger

#: Seconds between an acknowledgement and the forgetting of its start.
DELAY = 2.0
#: Starts forgotten in one script call; keeps Redis responsive.
BATCH = 500


class Settler:
    """Collects acknowledged starts; thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: deque[tuple[float, str, str, str]] = deque()
        self._lock = threading.Lock()
        #: Starts or ends that never reached the ledger: their tasks ran unguarded.
        self.missing = 0

    def add(self, mid: str, token: str, id: str) -> None:
        self._waiting.append((time.monotonic(), mid, token, id))

    def connection_lost(self) -> None:
        """Keep on record what was acknowledged just now: the broker may not have heard of it."""
        with self._lock:
            self._waiting.clear()

    def settle(self, *, everything: bool = False) -> None:
        """Forget what is due, or everything at the end.

        Raises:
            LedgerUnavailable: nothing is lost, the next call tries again.
        """
        with self._lock:
            horizon = time.monotonic() - (0.0 if everything else DELAY)
            while self._waiting and self._waiting[0][0] <= horizon:
                batch: list[tuple[float, str, str, str]] = []
                while self._waiting and len(batch) < BATCH and self._waiting[0][0] <= horizon:
                    batch.append(self._waiting.popleft())
                try:
                    missing = self._ledger.settle((mid, token) for _, mid, token, _ in batch)
                except BaseException:
                    self._waiting.extendleft(reversed(batch))
                    raise
                self.missing += len(missing)
                for number in missing:  # lost on their way, or ended for dead by a monitor
                    _, mid, token, id = batch[number]
                    self._ledger.survived(mid, token, id)
