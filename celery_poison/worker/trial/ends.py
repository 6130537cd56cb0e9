"""What the end of a cell means for a suspect that was in it."""

from __future__ import annotations

from billiard.exceptions import Terminated, TimeLimitExceeded

from celery_poison.evidence import Evidence
from celery_poison.requests import TaskDied, TrialSpoilt
from celery_poison.worker.trial.group import Group
from celery_poison.worker.trial.opened import Death


def error_of(number: int, group: Group, death: Death, evidence: Evidence) -> Exception:
    """Return what its request is told. Of a group nobody is to blame yet, whatever has happened to it.

    Args:
        number: the suspect's, in its group.
    """
    if group.is_shared:
        return _error_among_others(number, group, death, evidence)
    if group.overdue:
        error: Exception = TimeLimitExceeded(group.trials[0].hard)
    elif group.terminated_by:
        error = Terminated(-group.terminated_by)
    else:
        error = _spoilt(death, evidence) or TaskDied(death.cause, str(death), evidence)
    return error


def _error_among_others(number: int, group: Group, death: Death, evidence: Evidence) -> Exception:
    if group.terminated_by and group.left[number].request.was_ended:
        ended: Exception = Terminated(-group.terminated_by)
        return ended
    error: TrialSpoilt | TaskDied
    if group.terminated_by or group.overdue:
        error = TrialSpoilt("another one of its group was ended")
        # Others may have kept it from ending in time.
        error.group = 1 if number in group.overdue else len(group.trials)
    else:
        error = _spoilt(death, evidence) or TaskDied(death.cause, str(death), evidence)
        error.group = group.half
    return error


def _spoilt(death: Death, evidence: Evidence) -> TrialSpoilt | None:
    if death.why == "pressed":
        return TrialSpoilt("others had used up the memory", evidence=evidence)
    if evidence.is_from_outside:
        return TrialSpoilt("somebody asked its cell to end", death.cause, evidence)
    return None
