"""Keeps the visibility timeout away from what this worker holds, however long that takes (TP1-8)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from celery_poison.broker.channels import Channels
from celery_poison.forking import no_fork


class Renewal:
    """Renews the scores of the messages that this process has not acknowledged yet.

    In a thread of its own: the event loop is blocked by a task under solo, and a broker that does not answer
    must not keep the heartbeat waiting. When the consumer reconnects, its closing the old connections frees
    the thread.

    Args:
        channels: returns the open channels of this process, see :func:`~.transport.guarded_connection`.
        interval: seconds between two renewals at most. A quarter of the visibility timeout, if less.
        complain: is told what went wrong; the next round tries again.
    """

    def __init__(
        self, channels: Callable[[], Channels], interval: float, complain: Callable[[Exception], None]
    ) -> None:
        self._channels = channels
        self._interval = interval
        self._complain = complain
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; it ends with the process, because running tasks outlast the consumer's shutdown."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="poison-renewal", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        pause = threading.Event()
        while not pause.wait(self.interval):
            with no_fork():
                self.renew()

    @property
    def interval(self) -> float:
        """Seconds until the next renewal."""
        shares = [float(channel.visibility_timeout) / 4 for channel in self._channels().snapshot()]
        return max(0.05, min([self._interval, *shares]))

    def renew(self) -> None:
        """Renew everything that is held at this moment."""
        for channel in self._channels().snapshot():
            try:
                if channel.acknowledges:
                    channel.qos.renew()
            except Exception as error:
                if not channel.closed:  # else there is nothing to renew any more
                    self._complain(error)
