"""Work of the active monitor that may have to wait, in threads of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Set
from functools import partial

from celery import Celery
from celery.utils.log import get_logger

from celery_poison.basics.parts import Round
from celery_poison.errors import Fenced, LedgerUnavailable
from celery_poison.fleet.departures import Departures
from celery_poison.fleet.parking import Parking
from celery_poison.fleet.retention import Retention
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.fleet import Fleet
from celery_poison.settings import Settings

logger = get_logger("celery_poison")


class SideThread:
    """Works in a thread of its own: a broker, a disk or a receiver that hangs delays nothing else.

    Args:
        name: of the thread.
        pause: seconds between two beginnings, at least.
    """

    def __init__(self, name: str, pause: float = 0.0) -> None:
        self._name = name
        self._pause = pause
        self._not_before = 0.0
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_due(self) -> bool:
        """Whether it is not too early, and the last one has ended."""
        return time.monotonic() >= self._not_before and not self.is_busy

    def skip(self) -> None:
        """Begin nothing before the next pause is over."""
        self._not_before = time.monotonic() + self._pause

    def do(self, work: Callable[[], object]) -> None:
        """Begin it if it is due; the caller asks again."""
        if not self.is_due:
            return
        self.skip()

        def attempt() -> None:
            try:
                work()
            except (LedgerUnavailable, Fenced) as error:
                logger.debug("celery_poison: %s stands still: %s", self._name, error)
            except Exception:
                logger.exception("celery_poison: %s failed; it is tried again", self._name)

        self._thread = threading.Thread(target=attempt, name=self._name, daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for what was begun, at most so many seconds."""
        if self._thread is not None:
            self._thread.join(timeout)


class Errands:
    """Work that waits for brokers, disks and receivers, which may not answer.

    Args:
        rounds: those of extensions.
    """

    def __init__(self, app: Celery, ledger: Ledger, settings: Settings, rounds: Iterable[Round]) -> None:
        self._parking, self._unparking = Parking(app, ledger, settings), SideThread("poison-parking")
        self._departures, self._sending = Departures(app, ledger), SideThread("poison-outgoing")
        self._retention, self._deleting = Retention(ledger, settings), SideThread("poison-retention", 60.0)
        self._forgetting = SideThread("poison-forgetting", 60.0)
        self._ledger = ledger
        self._rounds = [(SideThread(each.name, each.pause), each) for each in rounds]

    def begin(self, fence: int, fleet: Fleet | None) -> None:
        """Begin what there is to do, of a fleet that cannot be looked at all of it; wait for none.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        if fleet is None or fleet.parked:
            self._unparking.do(self._parking.round)
        if fleet is None or fleet.leaves_in == 0:
            self._sending.do(self._departures.round)
        self._forgetting.do(self._parking.forget_the_old)
        self._deleting.do(self._retention.round)
        due = [(aside, each) for aside, each in self._rounds if aside.is_due]
        is_any = self._is_any({each.key for _, each in due if each.key})
        for aside, each in due:
            if each.key and not is_any:
                aside.skip()
            else:
                aside.do(partial(each.work, fence))

    def _is_any(self, keys: Set[str]) -> bool:
        with clear_errors("asking whether extensions have work"):
            return bool(keys and self._ledger.client.exists(*keys))

    def join(self, until: float) -> None:
        """Wait for what sends, deletes, or is of an extension, until that moment at most."""
        for each in (self._sending, self._deleting, *(aside for aside, _ in self._rounds)):
            each.join(max(0.0, until - time.monotonic()))
