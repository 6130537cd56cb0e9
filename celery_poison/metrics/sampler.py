"""The thread that looks at the ledger, so that nobody else ever waits for Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from celery.utils.log import get_logger

from celery_poison.quarantine.read_model import Snapshot

logger = get_logger("celery_poison")

#: After so many intervals without a new snapshot, the last one counts as out of date.
PATIENCE = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known at this moment.

    Attributes:
        snapshot: the newest; None before the first.
        age: seconds since it was taken.
        up: whether the last look succeeded, and not too long ago; None while the first look is under way.
        errors: looks that failed so far.
    """

    snapshot: Snapshot | None
    age: float
    up: bool | None
    errors: int


class Sampler:
    """Calls ``look`` every ``interval`` seconds in a daemon thread, and keeps its newest result.

    Args:
        look: may block and may raise; both are told in ``sample().up``.
    """

    def __init__(self, look: Callable[[], Snapshot], interval: float) -> None:
        self._look = look
        self._interval = interval
        self._latest: tuple[Snapshot | None, float] = (None, time.monotonic())
        self._succeeded: bool | None = None
        self._errors = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="poison-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the look that may be under way; does not wait for it."""
        self._stopped.set()

    def sample(self) -> Sample:
        """Return the newest, at once: never waits for Redis."""
        snapshot, taken_at = self._latest
        age = time.monotonic() - taken_at
        late = age > PATIENCE * self._interval + (snapshot.took if snapshot else 0.0)
        up = False if late else self._succeeded
        return Sample(snapshot, age, up, self._errors)

    def _work(self) -> None:
        while not self._stopped.is_set():
            self._try_to_look()
            self._stopped.wait(self._interval)

    def _try_to_look(self) -> None:
        try:
            snapshot = self._look()
        except Exception as error:
            self._errors += 1
            if self._succeeded is not False:
                logger.warning("celery_poison: metrics are not up to date: %s", error)
            self._succeeded = False
        else:
            self._latest = (snapshot, time.monotonic())
            self._succeeded = True
