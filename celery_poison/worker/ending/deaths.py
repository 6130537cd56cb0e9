"""What Celery tells of the end of a task, read as a death or as a failure."""

from __future__ import annotations

import os
from dataclasses import replace

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry

from celery_poison import causes
from celery_poison.evidence import NO_EVIDENCE, Evidence
from celery_poison.requests import MemoryExhausted, TaskDied
from celery_poison.worker.ending.exits import Exits

#: Ends that Celery handles itself, whatever the task says about acknowledging failures.
_OTHER_ENDS = (Reject, Ignore, Retry, WorkerLostError, TimeLimitExceeded, Terminated)


def cause_of_death(error: BaseException) -> str | None:
    """Return what a pool process died of, or None when ``error`` is no death."""
    match error:
        case TaskDied():
            return error.cause
        case MemoryError() | MemoryExhausted():
            return causes.MEMORY_ERROR
        case SystemExit() | KeyboardInterrupt():
            return causes.SYSTEM_EXIT
        case WorkerLostError():
            return causes.from_worker_lost(str(error))
    return None


def evidence_of(error: BaseException, pid: int | None, exits: Exits) -> Evidence:
    """Return what is known about a death beside its cause.

    Args:
        pid: of the process that ran it, if it has begun.
    """
    if isinstance(error, TaskDied) and error.evidence is not None:
        return replace(error.evidence, limit_kb=exits.limit_kb)
    if not pid or pid == os.getpid():
        return NO_EVIDENCE
    return (isinstance(error, WorkerLostError) and exits.evidence(pid)) or exits.so_far(pid)


def is_unacknowledged_failure(error: BaseException, task: object) -> bool:
    """Whether Celery would reject the message for good: its task does not acknowledge failures."""
    acks = getattr(task, "acks_on_failure", None)
    if acks is None:  # before Celery 5.7
        acks = getattr(task, "acks_on_failure_or_timeout", True) is not False
    return not acks and not isinstance(error, _OTHER_ENDS)
