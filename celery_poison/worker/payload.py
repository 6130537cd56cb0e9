"""What a heartbeat tells about its worker."""

from __future__ import annotations

import socket
import time

from celery import Celery

from celery_poison.worker.incarnation import Incarnation


class Payload:
    """The facts about one worker that stand in its ``worker`` hash.

    Args:
        release: ``poison_release``.
        pool: name of the pool's implementation.
        concurrency: tasks that it runs at once.
    """

    def __init__(self, app: Celery, me: Incarnation, release: str, pool: str, concurrency: int) -> None:
        self._app = app
        self._fixed: dict[str, str | int] = {
            "node": me.node,
            "pid": me.pid,
            "host": socket.gethostname(),
            "pool": pool,
            "concurrency": concurrency,
            "started_at": int(time.time() * 1000),
            "release": release,
        }

    def now(
        self, *, stopping: bool, reconnected: bool, unguarded: int, ledger_errors: int, vitals: str
    ) -> dict[str, str | int]:
        """Return all of it.

        Args:
            reconnected: it has lost its broker connection before.
            unguarded: starts or ends that never reached the ledger.
            vitals: what ``vitals.py`` has to tell.
        """
        return {
            **self._fixed,
            "queues": ",".join(sorted(self._app.amqp.queues.consume_from)),
            "stopping": int(stopping),
            "reconnected": int(reconnected),
            "unguarded": unguarded,
            "ledger_errors": ledger_errors,
            "vitals": vitals,
        }
