"""When a worker stops consuming a queue and when it goes on (WAS-6): facts and bounds in, the next state.

One worker's consumption of one queue is an *endpoint*. It consumes; after too many failures it is suspended;
when that is over it probes: one message runs, and how that ends decides. Nothing here knows Redis, Celery or
clocks; docs/howto/stop.md has the same rules in plain English, and the tests try every way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from celery_poison.decide import End

#: So many runs are looked at for the ratio: not one fewer, and of more the last.
RUNS = 10

#: What says that whatever the queue's tasks depend on is there, or that it is not. Other ends say nothing.
_SUCCESS = frozenset({End.RETURNED})
_FAILURE = frozenset({End.RAISED, End.RETRIED, End.ROLLED_BACK, End.DIED, End.TIMED_OUT, End.NOT_REACHED})


class Mode(Enum):
    """The mode of an endpoint."""

    CONSUMING = "consuming"
    SUSPENDED = "suspended"
    PROBING = "probing"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of an endpoint's failures.

    Attributes:
        in_a_row: failures without a success between them; 0: any number may be.
        ratio: share of failures among the last :data:`RUNS`; None: any may be.
    """

    in_a_row: int = 0
    ratio: float | None = None

    def at(self, options: Mapping[str, Any]) -> Bounds:
        """Return the bounds in a queue, given its options in ``poison_queues``."""
        in_a_row = options.get("suspend_after_failures", self.in_a_row)
        return Bounds(in_a_row, options.get("suspend_failure_ratio", self.ratio))

    @property
    def are_set(self) -> bool:
        return bool(self.in_a_row or self.ratio is not None)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One worker's consumption of one queue.

    Attributes:
        in_a_row: failures since the last success.
        recent: the last runs, the newest last: whether each failed.
        reason: why it is suspended.
    """

    mode: Mode = Mode.CONSUMING
    in_a_row: int = 0
    recent: tuple[bool, ...] = ()
    reason: str = ""


FRESH = Endpoint()
PROBING = Endpoint(Mode.PROBING)


def failed(end: End) -> bool | None:
    """Return whether a run that ended so failed; None where that says nothing about its queue."""
    return True if end in _FAILURE else False if end in _SUCCESS else None


def after_run(endpoint: Endpoint, end: End, bounds: Bounds, *, probe: bool = False) -> Endpoint:
    """Return an endpoint after the end of one of its runs.

    Args:
        probe: it is the run that was to decide; what had begun before it decides nothing any more.
    """
    how = failed(end)
    if how is None or endpoint.mode is Mode.SUSPENDED:
        return endpoint
    if endpoint.mode is Mode.PROBING:
        if not probe:
            return endpoint
        return Endpoint(Mode.SUSPENDED, reason="its probe failed") if how else FRESH
    seen = replace(
        endpoint,
        in_a_row=endpoint.in_a_row + 1 if how else 0,
        recent=(*endpoint.recent, how)[-RUNS:],
    )
    reason = _too_many(seen, bounds)
    return Endpoint(Mode.SUSPENDED, reason=reason) if reason else seen


def _too_many(endpoint: Endpoint, bounds: Bounds) -> str:
    if bounds.in_a_row and endpoint.in_a_row >= bounds.in_a_row:
        return f"{endpoint.in_a_row} failures in a row"
    failures, runs = sum(endpoint.recent), len(endpoint.recent)
    if bounds.ratio is not None and runs == RUNS and failures >= bounds.ratio * runs:
        return f"{failures} of the last {runs} runs failed"
    return ""


def most_suspended(consumers: int, share: float) -> int:
    """Return how many of a queue's consumers may be suspended at a time: at least one."""
    return max(1, int(share * consumers))
