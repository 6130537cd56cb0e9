"""One object for each part of a worker, and one for each process that runs its tasks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from celery import Celery

from celery_poison.extension import Extensions
from celery_poison.ledger import Ledger
from celery_poison.policy import Policy
from celery_poison.settings import Settings
from celery_poison.worker.announce import Announcer, Complaints
from celery_poison.worker.lease import Incarnation, Lease
from celery_poison.worker.plans import Plans
from celery_poison.worker.recorder import Recorder
from celery_poison.worker.threads import Background, EventLoop


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Site:
    """One worker in this process.

    Attributes:
        me: under which name it is known to the others.
        policies: task name -> (policy, whether it diverts); updated in place.
        plans: made anew whenever something changes that they are made of.
        background: does what waits for Redis.
        announce: log lines, signals and events.
        recorder: writes starts and ends.
        complain: takes our own errors, which are counted, and logged once.
        extensions: their hooks.
    """

    app: Celery
    settings: Settings
    ledger: Ledger
    me: Incarnation
    policies: dict[str, tuple[Policy, bool]]
    plans: Plans
    loop: EventLoop
    background: Background
    announce: Announcer
    recorder: Recorder
    complain: Complaints
    extensions: Extensions

    def as_dict(self) -> dict[str, Any]:
        """Return its fields by their names, for a class that adds to them."""
        return {each.name: getattr(self, each.name) for each in fields(Site)}


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
