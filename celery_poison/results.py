"""What the result backend knows about a task: a loss after SUCCESS was stored blames nobody."""

from __future__ import annotations

from typing import Any

from celery import states


def success_was_stored(task: Any, id: str, *, ignored: bool | None = None) -> bool:
    """Return whether SUCCESS is stored for task ``id``; False where that cannot be known.

    Args:
        task: the registered task, whose backend is asked.
        ignored: whether this message's result is ignored; default: as the task says.
    """
    if task.ignore_result if ignored is None else ignored:
        return False
    try:
        if task.backend.as_uri() == "rpc://":  # results lie in the caller's own queue
            return False
        return bool(task.backend._get_task_meta_for(id)["status"] == states.SUCCESS)
    except Exception:
        return False
