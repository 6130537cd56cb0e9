"""How a worker ends, whatever ends it, and how nothing of it stays behind in a process that goes on.

A worker may be a thread of a program: in tests, by ``celery.contrib.testing`` and its fixtures, or beside a
web server. Such a one is stopped cold as a rule, and of that Celery sends no signal.
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Any

from celery import signals
from celery.apps.worker import Worker as Program
from celery.utils.log import get_logger

from celery_poison.broker.kinds import broker_of
from celery_poison.errors import NoLedger, PoisonError, SchemaMismatch
from celery_poison.plugin import plugin_of
from celery_poison.worker.life import Life

logger = get_logger("celery_poison")

#: Seconds between two looks at whether the last task has ended.
PAUSE = 0.1

_has_warned = False


def goes_without(worker: Any, error: PoisonError) -> bool:
    """Say, once a process, that nothing can be guarded where that is no reason not to start; return whether.

    A broker in memory ends with its worker, and a worker that is embedded in another program serves a test:
    both go on where there is no ledger, or only another app's. A worker that was started as a program on a
    real broker does not: there it is a mistake that would be noticed on the day of the first crash.
    """
    global _has_warned
    plugin = plugin_of(worker.app)
    is_reason = isinstance(error, (NoLedger, SchemaMismatch)) and plugin.settings.fail_open
    if not (is_reason and (_is_in_memory(worker.app) or not isinstance(worker, Program))):
        return False
    if not _has_warned:
        _has_warned = True
        logger.warning("celery_poison: tasks run unguarded in this process: %s", error)
    return True


def _is_in_memory(app: Any) -> bool:
    return broker_of(app.connection_for_read()).ends_with_process


class Farewell:
    """Says farewell once, as soon as everything was acknowledged that can be.

    Args:
        worker: Celery's.
        life: of what is built for it.
    """

    def __init__(self, worker: Any, life: Life) -> None:
        self._worker, self._life = worker, life
        self._is_over = False
        self._lock = threading.Lock()
        self._stopped = worker.blueprint.on_stopped
        worker.blueprint.on_stopped = self._has_stopped
        # Of this worker only: another one may run in the same process.
        signals.worker_shutting_down.connect(self._stopping, sender=worker.hostname)
        signals.worker_shutdown.connect(self._shut_down, sender=worker)
        atexit.register(self._exit)

    def _stopping(self, sig: str = "", **_: Any) -> None:
        # Called from a signal handler: nothing but this may be done here.
        self._life.worker.shutdown.ask(sig)

    def _has_stopped(self) -> None:
        """As in Celery; then, since no signal is sent at the end of a cold shutdown, all that follows."""
        if self._stopped is not None:
            self._stopped()
        if self._life.is_at_work:  # threads cannot be stopped: the last of them is waited for
            threading.Thread(target=self._wait, name="poison-farewell", daemon=True).start()
        else:
            self._shut_down()

    def _wait(self) -> None:
        while self._life.is_at_work:
            time.sleep(PAUSE)
        self._shut_down()

    def _shut_down(self, **_: Any) -> None:
        if self._exit():
            self._life.release()
            signals.worker_process_init.disconnect(self._life.child_begins)
            signals.worker_shutting_down.disconnect(self._stopping, sender=self._worker.hostname)
            signals.worker_shutdown.disconnect(self._shut_down, sender=self._worker)

    def _exit(self) -> bool:
        """Say farewell, unless that was done already; return whether it was done now."""
        with self._lock:
            if self._is_over:
                return False
            self._is_over = True
            atexit.unregister(self._exit)
            self._life.farewell()
            return True
