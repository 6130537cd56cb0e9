"""Plain kombu beside a fleet: it takes whatever is not renewed."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.broker.kit import Site


def eager(visibility: float) -> dict[str, float]:
    """Return transport options under which everybody sweeps at every chance."""
    return {"visibility_timeout": visibility, "unacked_restore_throttle": 1, "unacked_restore_interval": 1}


class PlainNeighbour:
    """Plain kombu on the same Redis. It consumes a queue of its own, and sweeps all the time.

    That its sweeps take what they can get is seen by a message that nobody renews: whenever that was brought
    back, it is lost once more.
    """

    def __init__(self, url: str, visibility: float) -> None:
        self._site = Site(url, eager(visibility))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="neighbour")
        #: How often the lost message came back.
        self.swept = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._site.close()

    def _work(self) -> None:
        sweeper = self._site.receiver(boot_id="", queues=["elsewhere"])
        self._site.send("bait", queue="bait")
        self._lose_it()
        while not self._stop.is_set():
            with suppress(TimeoutError):
                sweeper.connection.drain_events(timeout=0.05)
            if self._site.raw.llen("bait"):
                self.swept += 1
                self._lose_it()

    def _lose_it(self) -> None:
        loser = self._site.receiver(queues=["bait"])
        loser.receive(1)
        loser.die()
