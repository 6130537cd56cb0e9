"""How tasks acknowledge: what a guarded one is by, and what would hold for it without us."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from celery import Celery
from celery.app.task import Task

from celery_poison.errors import ConfigurationError


class GuardedTask(Task):
    """The base of every guarded task, for modules that make none; ``PoisonTask`` derives from it."""

    abstract = True

    #: What holds for the task without us: (acks_late, reject_on_worker_lost); None where it says nothing.
    own_acks: ClassVar[tuple[bool | None, bool | None]] = (None, None)
    #: True for tasks guarded by ``poison_guard_all``, which keep their acknowledgement mode.
    keeps_acks: ClassVar[bool] = False


def refuse_early_ack(options: Mapping[str, Any], name: str) -> None:
    if options.get("acks_late") is False:
        raise ConfigurationError(
            f"{name}: a guarded task acknowledges late, so acks_late=False contradicts it: take that or the"
            " guard away (poison_guard_all observes tasks that acknowledge early)"
        )


def acknowledge_late(task: Any) -> None:
    """Let a task acknowledge late, also with ``poison_guard_all``: nothing of it runs twice (NEW-16)."""
    if not task.acks_late:
        type(task).acks_late = type(task).reject_on_worker_lost = True


def own_acks_of(task: Any) -> tuple[bool | None, bool | None]:
    """Return a task's own acknowledgement settings, as ``GuardedTask.own_acks``."""
    kind = type(task)
    if not isinstance(task, GuardedTask):
        return task.acks_late, task.reject_on_worker_lost
    if "own_acks" in vars(kind):
        own: tuple[bool | None, bool | None] = kind.own_acks
        return own
    return vars(kind).get("acks_late"), vars(kind).get("reject_on_worker_lost")


def give_back_acks(app: Celery) -> None:
    """Let every guarded task acknowledge as it would without us (``poison_observe_only``)."""
    for task in app.tasks.values():
        if isinstance(task, GuardedTask) and not task.keeps_acks:
            kind: Any = type(task)
            kind.acks_late, kind.reject_on_worker_lost = own_acks(app, task)


def own_acks(app: Celery, task: Any) -> tuple[bool, bool]:
    """Return how a task acknowledges without us: ``acks_late`` and ``reject_on_worker_lost``."""
    late, reject = own_acks_of(task)
    return (
        app.conf.task_acks_late if late is None else late,
        app.conf.task_reject_on_worker_lost if reject is None else reject,
    )


def acknowledging(task: Any, *, late: bool, reject_on_worker_lost: bool) -> Any:
    """Return a copy of a task that acknowledges in this way; ``copy.copy`` returns the registered one."""
    twin = object.__new__(type(task))
    vars(twin).update(vars(task))
    twin.acks_late, twin.reject_on_worker_lost = late, reject_on_worker_lost
    return twin
