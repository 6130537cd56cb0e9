"""Asks the result backend of a task what it has stored, for as long as that answers."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from celery.utils.log import get_logger

from celery_poison.upstream.requests import success_was_stored

logger = get_logger("celery_poison")

#: Seconds for which an answer is waited for. The monitor's lock lasts longer than one such wait.
ANSWER = 1.0
#: Seconds for which a backend that did not answer is not asked again: nothing counts as stored meanwhile.
QUIET = 30.0


class StoredResults:
    """What the result backends of one app have stored; used by one thread."""

    def __init__(self) -> None:
        self._asks_again_at = 0.0

    def has_success(self, task: Any, id: str, began_ms: int, *, ignored: bool | None = None) -> bool:
        """Return whether SUCCESS is stored for task ``id`` by a start; False where nothing says so in time.

        Args:
            task, id, began_ms, ignored: as for :func:`.requests.success_was_stored`.
        """
        if (task.ignore_result if ignored is None else ignored) or time.monotonic() < self._asks_again_at:
            return False
        try:
            backend = task.backend  # this thread's: Celery makes one for each
        except Exception:
            return False
        answers: list[bool] = []
        ask = partial(success_was_stored, task, id, began_ms, ignored=ignored, backend=backend)
        # A greenlet where gevent or eventlet replaced threads: it shares the backend's connections.
        thread = threading.Thread(target=lambda: answers.append(ask()), name="poison-result", daemon=True)
        thread.start()
        thread.join(ANSWER)
        if not answers and thread.is_alive():
            self._asks_again_at = time.monotonic() + QUIET
            logger.warning(
                "celery_poison: the result backend did not answer within %g s: whether %s[%s] and others"
                " succeeded is not asked for %g s, and counts as not stored",
                ANSWER,
                task.name,
                id,
                QUIET,
            )
        return bool(answers and answers[0])
