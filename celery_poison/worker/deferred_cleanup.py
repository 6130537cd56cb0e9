"""Forgets acknowledged starts, a little late and many at a time.

Late, because an acknowledgement may be lost together with its connection: the copy that the broker
then delivers again is recognised by the start that is still on record.

What is not on record then may only be late: after a stall Redis may read this process's connection before
that of the process which ran the task. So it is looked for once more before it counts as lost.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from celery_poison.errors import StaleDelivery
from celery_poison.ledger import Ledger

#: Seconds between an acknowledgement and the forgetting of its start, and from there to the second look.
DELAY = 2.0
#: Seconds for which the end of a start is kept whose message may be delivered again.
FOR_A_COPY = 600.0
#: Starts forgotten in one script call; keeps Redis responsive.
BATCH = 500
#: Starts that a Redis is told again at most, when it may have forgotten them.
MEMORY = 20_000


class Acknowledged(NamedTuple):
    """A start that ended and whose message was acknowledged.

    Attributes:
        due: when it may be forgotten, by this process's clock.
    """

    due: float
    mid: str
    token: str
    id: str
    task: str


class DeferredCleanup:
    """Collects acknowledged starts; thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: deque[Acknowledged] = deque()
        self._missed: deque[Acknowledged] = deque()
        self._late: deque[Acknowledged] = deque()
        #: Kept for a copy that may come: whoever meets it takes them off the ledger.
        self._kept: list[Acknowledged] = []
        self._lock = threading.Lock()
        #: Starts or ends that never reached the ledger: their tasks ran unguarded.
        self.missing = 0

    def add(self, mid: str, token: str, id: str, task: str) -> None:
        self._waiting.append(Acknowledged(time.monotonic() + DELAY, mid, token, id, task))

    def connection_lost(self, keep_for: float) -> list[Acknowledged]:
        """Keep what was acknowledged just now, and return it: the broker may deliver it again.

        Args:
            keep_for: seconds within which it would.
        """
        with self._lock:
            kept = self.recent()
            self._waiting.clear()
        self.keep(kept, keep_for)
        return kept

    def keep(self, ended: Iterable[Acknowledged], seconds: float) -> None:
        """Keep starts that ended on record for so long; a copy that is met takes them off earlier."""
        due = time.monotonic() + seconds
        with self._lock:
            self._kept += [end._replace(due=due) for end in ended]

    @property
    def has_work(self) -> bool:
        """Whether anything was acknowledged of which the event loop must be asked."""
        return bool(self._waiting)

    def recent(self) -> list[Acknowledged]:
        """Return what was acknowledged just now, and is still on record for that."""
        return list(self._waiting.copy())[-MEMORY:]

    def tokens(self) -> set[str]:
        """Return the tokens of all starts that are on record still, and will be forgotten from here."""
        with self._lock:
            lines = (self._waiting.copy(), self._missed, self._late, self._kept)
            return {end.token for line in lines for end in line}

    def take_back_flags(self, candidates: set[str]) -> None:
        """Take back what is held against starts that had ended here: their monitor could not see that.

        Args:
            candidates: task ids of all messages that are flagged.

        Raises:
            LedgerUnavailable: the next call tries again.
        """
        with self._lock:
            lines = (self._waiting.copy(), self._kept)
            ended = [end for line in lines for end in line if end.id in candidates]
        for end in ended:
            with suppress(StaleDelivery):
                self._ledger.survived(end.mid, end.token, end.id)

    def clean_up(self, heard_until: float = math.inf, *, everything: bool = False) -> None:
        """Forget what is due, or everything at the end.

        Args:
            heard_until: the time until which the event loop would have noticed a lost connection.

        Raises:
            LedgerUnavailable: nothing is lost, the next call tries again.
        """
        with self._lock:
            now = time.monotonic()
            horizon = float("inf") if everything else now
            self._forget_kept(now + FOR_A_COPY / 2 if everything else now)
            self.missing += sum(1 for _ in self._forget(self._late, horizon))
            self._missed.extend(self._forget(self._waiting, horizon if everything else min(now, heard_until)))
            while self._missed:  # lost, late, or ended for dead by a monitor
                end = self._missed[0]
                with suppress(StaleDelivery):  # it has a new owner, as the journal says by now
                    self._ledger.survived(end.mid, end.token, end.id)
                self._late.append(self._missed.popleft()._replace(due=time.monotonic() + DELAY))
            if everything:
                self.missing += len(self._late)
                self._late.clear()

    def _forget_kept(self, horizon: float) -> None:
        # Everybody who keeps some does so for one of two times: those that are due need not stand first.
        due = deque(end for end in self._kept if end.due <= horizon)
        self._kept = [end for end in self._kept if end.due > horizon]
        try:
            for _ in self._forget(due, horizon):
                pass  # its copy came
        except BaseException:
            self._kept += due
            raise

    def _forget(self, line: deque[Acknowledged], horizon: float) -> Iterator[Acknowledged]:
        """Forget those in ``line`` that are due; yield those whose start or end was not on record."""
        while line and line[0].due <= horizon:
            batch: list[Acknowledged] = []
            while line and len(batch) < BATCH and line[0].due <= horizon:
                batch.append(line.popleft())
            try:
                missing = self._ledger.clean_up((end.mid, end.token) for end in batch)
            except BaseException:
                line.extendleft(reversed(batch))
                raise
            yield from (batch[number] for number in missing)
