"""The last turn of a worker's event loop: a loop that stands stops everything but the heartbeat."""

from __future__ import annotations

from time import monotonic
from typing import Any


class LoopClock:
    """The clock that each turn of the event loop sets; any thread may read it.

    A worker whose broker is away, or that leaves, has no loop: nothing stands then.
    """

    def __init__(self) -> None:
        self._turned: float | None = None
        self._is_on = False
        self._away_since: float | None = None

    def turn(self) -> None:
        """Note a turn of the loop; one comes each second or two, even where nothing happens."""
        self._turned = monotonic()

    def follow(self, consumer: Any) -> None:
        """Hear the turns of the loop that has no hub: solo, threads and greenlets, brokers without one."""
        perform = consumer.perform_pending_operations

        def turn_and_perform() -> None:
            self.turn()
            perform()

        consumer.perform_pending_operations = turn_and_perform

    def follow_hub(self, hub: Any) -> None:
        """Hear the turns of a hub, from now on."""
        hub.on_tick.add(self.turn)

    def connected(self) -> None:
        """Note a new broker connection: a loop is about to begin."""
        self._turned, self._is_on, self._away_since = None, True, None

    def away(self) -> None:
        """Note that the broker connection is gone, and the loop with it."""
        self._is_on, self._away_since = False, monotonic()

    def left(self) -> None:
        """Note that the worker leaves."""
        self._is_on, self._away_since = False, None

    def turned_ago(self) -> float | None:
        """Return the seconds since the loop turned; None: it has not begun to, or there is none."""
        turned = self._turned
        return monotonic() - turned if self._is_on and turned is not None else None

    def away_for(self) -> float | None:
        """Return the seconds for which there has been no broker connection; None: there is one."""
        since = self._away_since
        return monotonic() - since if since is not None else None
