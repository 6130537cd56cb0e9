"""For which worker this process runs tasks. One as a rule, but tests of an app may have more at a time."""

from __future__ import annotations

from dataclasses import dataclass

from celery_poison.ledger import Ledger
from celery_poison.worker.lease import Lease
from celery_poison.worker.recorder import Recorder


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """The worker for which this process runs tasks: it is set before its pool forks.

    Attributes:
        contained: whether tasks share the main process, which SystemExit and MemoryError must not reach.
        observes: whether nothing may become of a task but what Celery makes of it (``poison_observe_only``).
    """

    recorder: Recorder
    ledger: Ledger
    lease: Lease
    contained: bool
    observes: bool = False


#: By the boot id that they began with: tests of an app may have more than one in a process.
_serving: dict[str, Serving] = {}


def serve(boot_id: str, serving: Serving) -> None:
    """Make this process and its future children run and record the tasks of a worker.

    Args:
        boot_id: the one that it began with.
    """
    _serving[boot_id] = serving


def serving_as(boot_id: str) -> Serving | None:
    """Return the worker that began with this boot id, if this process runs its tasks."""
    return _serving.get(boot_id)


def release(boot_id: str) -> None:
    """Record nothing any more for a worker that has left; this process goes on."""
    _serving.pop(boot_id, None)
