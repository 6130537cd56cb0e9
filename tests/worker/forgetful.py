"""Makes a worker lose sight of what its processes run when it is asked to leave: `celery worker -I` this."""

from __future__ import annotations

from typing import Any

import billiard.pool
from celery.signals import worker_ready, worker_shutting_down

# Seconds for which a process waits, before it ends, until its results were read: it waits for ever here.
billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = 10**9

_pools: list[Any] = []


@worker_ready.connect
def _remember(sender: Any, **_: Any) -> None:
    _pools.append(sender.pool)


@worker_shutting_down.connect
def _forget(**_: Any) -> None:
    for pool in _pools:
        pool._pool._cache.clear()
