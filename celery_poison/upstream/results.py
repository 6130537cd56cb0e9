"""Asks the result backend of a task what it has stored, for as long as that answers."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

from celery import states
from celery.utils.log import get_logger

logger = get_logger("celery_poison")

#: Seconds for which an answer is waited for. The monitor's lock lasts longer than one such wait.
ANSWER = 1.0
#: Seconds for which a backend is not asked again that did not answer so often, one after the other: nothing
#: counts as stored meanwhile.
QUIET, SILENCES = 30.0, 2


class StoredResults:
    """The results stored in the backends of one app; used by one thread."""

    def __init__(self) -> None:
        self._asks_again_at = 0.0
        self._silences = 0

    def has_success(self, task: Any, id: str, began_ms: int, *, ignored: bool | None = None) -> bool:
        """Return whether SUCCESS is stored for task ``id`` by a start; False where nothing says so in time.

        An id may be used again: what was stored before the start began is an earlier message's.

        Args:
            task: the registered task, whose backend is asked.
            began_ms: when the start began, in ms by the clock of its machine; 0: that is not known.
            ignored: whether this message's result is ignored; default: as the task says.
        """
        if (task.ignore_result if ignored is None else ignored) or time.monotonic() < self._asks_again_at:
            return False
        try:
            backend = task.backend  # this thread's: Celery makes one for each
        except Exception:
            return False
        answers: list[bool] = []
        ask = partial(_is_stored, backend, id, began_ms)
        # A greenlet where gevent or eventlet replaced threads: it shares the backend's connections.
        thread = threading.Thread(target=lambda: answers.append(ask()), name="poison-result", daemon=True)
        thread.start()
        thread.join(ANSWER)
        self._silences = self._silences + 1 if thread.is_alive() else 0
        if self._silences >= SILENCES:
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


def _is_stored(backend: Any, id: str, began_ms: int) -> bool:
    try:
        if backend.as_uri() == "rpc://":  # results lie in the caller's own queue
            return False
        meta = backend._get_task_meta_for(id)
        return meta["status"] == states.SUCCESS and 0 < began_ms <= _ms(meta["date_done"])
    except Exception:
        return False


def _ms(date: Any) -> float:
    """Return the time at which a result was stored, in ms since 1970; backends have it as text, too."""
    moment = datetime.fromisoformat(date) if isinstance(date, str) else date
    return float((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
