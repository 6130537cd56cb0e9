"""The usual decision about a message in quarantine, as far as its evidence bears it."""

from __future__ import annotations

from celery_poison import causes
from celery_poison.desk.others import run_time
from celery_poison.desk.own_deaths import are_at_one_place, causes_of
from celery_poison.desk.reading import Detail

_OF_MEMORY = (causes.OOM, causes.MEMORY_ERROR)
#: What took so many times the most that others took did not fail for want of a little more.
_FAR = 2


def decision(detail: Detail) -> str:
    """Return the usual decision; empty where there is none."""
    record, others = detail.record, detail.others
    if record.cause in (*_OF_MEMORY, causes.TIME_LIMIT) and len(causes_of(detail.deaths)) > 1:
        return "repair the code or the input, then release; or fail"
    if others is not None and _is_far_above_others(detail):
        few = f"others needed at most {others.needed[-1]}"
        return f"where its data is just large, release it to workers with more memory, else repair: {few}"
    limit = record.evidence.time_limit_s if record.cause == causes.TIME_LIMIT else None
    longest = others.longest_ms if others is not None else None
    if limit and longest is not None:
        took = f"others took at most {run_time(longest)} of {limit:g} s"
        if limit * 1000 >= _FAR * longest:
            return f"repair the code or the input, then release: {took}"
        return f"raise the limit in the task's code, then release: {took}; if it hangs, repair it"
    if record.cause == causes.TIME_LIMIT and are_at_one_place(detail.deaths):
        return "repair the task where all deaths were, then release; a higher limit helps only what is slow"
    return causes.usual_decision(record.cause)


def _is_far_above_others(detail: Detail) -> bool:
    """Whether it ran out of memory of which all others need far less."""
    others, peak = detail.others, detail.record.evidence.rss_kb
    is_of_memory = detail.record.cause in _OF_MEMORY
    return bool(is_of_memory and others and others.most_kb and peak and peak >= _FAR * others.most_kb)
