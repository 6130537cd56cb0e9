"""What the end of a cell means for the suspect that was in it."""

from __future__ import annotations

from billiard.exceptions import Terminated, TimeLimitExceeded

from celery_poison.evidence import Evidence
from celery_poison.requests import TaskDied, TrialSpoilt
from celery_poison.sandbox.opened import Death
from celery_poison.sandbox.trial import Trial


def error_of(trial: Trial, death: Death, evidence: Evidence) -> Exception:
    """Return what its request is told."""
    if trial.overdue:
        error: Exception = TimeLimitExceeded(trial.hard)
    elif trial.terminated_by:
        error = Terminated(-trial.terminated_by)
    elif death.why == "pressed":
        error = TrialSpoilt("others had used up the memory", evidence=evidence)
    elif evidence.is_from_outside:
        error = TrialSpoilt("somebody asked its cell to end", death.cause, evidence)
    else:
        error = TaskDied(death.cause, str(death), evidence)
    return error
