"""Which Redis the ledger is: another one is told what it may not know, and a new master is followed."""

from __future__ import annotations

from functools import partial

from celery_poison.ledger.writer import Writer
from celery_poison.worker.background import Retry
from celery_poison.worker.health import Health
from celery_poison.worker.loop import EventLoop
from celery_poison.worker.resync import Resync


class MasterFollower:
    """Follows the Redis of one worker's ledger.

    Args:
        interval: seconds between two questions to Sentinel.
    """

    def __init__(
        self, writer: Writer, resync: Resync, health: Health, loop: EventLoop, interval: float
    ) -> None:
        self._writer = writer
        self._resync = resync
        self._health = health
        self._loop = loop
        self._interval = interval

    def heard_from(self, run_id: str) -> None:
        """Note which Redis answered; one that was restarted or replaced is told what it may not know."""
        self._resync.heard_from(run_id, self._is_another)

    def _is_another(self) -> None:
        self._health.is_another_redis()
        self._follow_master()

    def go_on(self) -> None:
        """Follow the master, now and in each interval (in the background thread)."""
        self._follow_master()
        raise Retry(self._interval)

    def _follow_master(self) -> None:
        """Leave a master that Sentinel has replaced; what is written there is lost."""
        left = self._writer.follow()
        if left is not None:
            self._loop.call_in_loop(partial(self._leave_broker, left))

    def _leave_broker(self, address: tuple[str, int]) -> None:
        """What the old master still gives to this worker, the new one gives to others (on the event loop)."""
        client = getattr(self._loop.consumer.task_consumer.channel, "client", None)
        connection = getattr(client, "connection", None)
        if connection is not None and (connection.host, connection.port) == address:
            self._loop.start_afresh("there is a new master")
