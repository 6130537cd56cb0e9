"""A monitor in a process of its own: a standby for fleets of one worker (EMS-3)."""

from __future__ import annotations

import socket
import threading
from functools import partial
from uuid import uuid4

from celery import Celery
from celery.utils.log import get_logger

from celery_poison import causes, signals
from celery_poison.broker.identity import identity_of, is_same_broker
from celery_poison.errors import LedgerUnavailable
from celery_poison.fleet.monitor import Monitor
from celery_poison.ledger import connection, signature
from celery_poison.ledger.notices import SUSPECTED, Fact, Notice
from celery_poison.ledger.writer import Writer
from celery_poison.plugin import plugin_of

logger = get_logger("celery_poison")

#: Seconds after which its broken connection is looked at again at the latest.
TICK = 5.0


class StandaloneMonitor:
    """A monitor in a process of its own, which watches the workers of one app until :meth:`stop` (EMS-3).

    Raises:
        ConfigurationError: a setting is wrong, or the ledger belongs to another app.
        LedgerUnavailable: Redis is away at the start; later it is waited for.
    """

    def __init__(self, app: Celery) -> None:
        plugin = plugin_of(app)
        self.name = f"monitor@{socket.gethostname()}/{uuid4().hex[:16]}"
        self._ledger = plugin.open_ledger()
        for warning in connection.check_server(self._ledger.client):
            logger.warning("celery_poison: %s", warning)
        signature.enroll(
            self._ledger.client, self._ledger.keys, **identity_of(app), is_same=partial(is_same_broker, app)
        )
        keys, client = self._ledger.keys, self._ledger.client
        self._writer = Writer(
            client, keys.channel(self.name), news=keys.news, on_news=lambda: self._monitor.hurry()
        )
        self._monitor = Monitor(
            app,
            self._ledger,
            plugin.settings,
            lambda: (self.name, self._writer.run_id),
            self._note_candidate,
            lambda: plugin.refresh_policies(self._ledger),
        )

    @property
    def is_active(self) -> bool:
        """Whether it holds the lock; else it is the standby of the one that does."""
        return self._monitor.is_active

    def run(self) -> None:
        """Watch until :meth:`stop` is called from a signal handler or another thread."""

        def stay_connected() -> None:
            while True:
                self._writer.open()
                self._writer.wait(TICK)

        threading.Thread(target=stay_connected, name="poison-presence", daemon=True).start()
        self._monitor.work()
        try:
            self._ledger.fleet.retire(self.name)
        except LedgerUnavailable as error:
            logger.warning("celery_poison: %s", error)

    def stop(self) -> None:
        """Have :meth:`run` return, half a second later at most."""
        self._monitor.begin_no_more()  # a signal may have interrupted what holds the lock of a wake-up

    def _note_candidate(self, id: str, task: str, cause: str, crashes: int) -> None:
        story = causes.describe(cause)
        logger.warning(SUSPECTED, task, id, story, crashes)
        signals.message_candidate.send(sender=None, message={"id": id, "task": task}, cause=cause)
        try:
            self._ledger.notices.leave([Notice(id, Fact.CANDIDATE, story)])
        except LedgerUnavailable as error:
            logger.debug("celery_poison: this candidate will not be announced: %s", error)
