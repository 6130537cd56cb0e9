"""Stands around the body of each guarded task, whatever its classes override.

A class of the user's may run the body by itself, and need not call ``super()``. So these wrappers are put on
the class of the task itself, before Celery builds its tracer: all that is below them in the class order is
called as without us. They are put on in processes that run tasks, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.app.task import Task

from celery_poison.broker.capture import limited, sent_at_once
from celery_poison.errors import ConfigurationError
from celery_poison.task import PoisonTask, retrying, run_of
from celery_poison.upstream.requests import MemoryExhausted
from celery_poison.worker.failed import register

#: On each of our wrappers, so that none is put on twice.
_MARK = "stands_around"


def surround(app: Celery) -> None:
    """Stand around every guarded task of ``app``; safe to call again.

    Raises:
        ConfigurationError: a task takes its messages past everything that could be guarded.
    """
    register(app)
    for task in list(app.tasks.values()):
        if isinstance(task, PoisonTask):
            _surround(task)


def _surround(task: PoisonTask) -> None:
    """Stand around one guarded task; raises as :func:`surround`."""
    kind: Any = type(task)
    if kind.Strategy != Task.Strategy:
        raise ConfigurationError(
            f"task {task.name!r} has a Strategy of its own, by which its messages pass all that would guard"
            " them: take @guarded (or the base PoisonTask) away from it, or the Strategy"
        )
    _wrap(kind, "__call__", _run)
    for method, around in (("retry", _retry), ("replace", _replace)):
        if getattr(kind, method) is not getattr(PoisonTask, method):
            _wrap(kind, method, around)


def _wrap(kind: Any, name: str, around: Callable[..., Any]) -> None:
    own = vars(kind).get(name)
    if getattr(own, _MARK, False):
        return

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        below = own.__get__(self, type(self)) if own is not None else getattr(super(kind, self), name)
        return around(self, below, args, kwargs)

    setattr(method, _MARK, True)
    setattr(kind, name, method)


def _run(task: PoisonTask, below: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call the body; what the guard does around it is done once, however many classes call each other."""
    run, outside = run_of(task), limited.set(True)  # what it publishes is limited, as any publisher's
    try:
        if run is None or not run.enters():  # called directly, or from within
            return below(*args, **kwargs)
        try:
            return run.call(task, below, args, kwargs)
        except MemoryError as error:
            raise MemoryExhausted(repr(error)) from None
        except Exception as error:
            run.note_failure(task, error)
            raise
        finally:
            # Before Celery stores a result: another start may own the message by now.
            run.check_ownership()
    finally:
        limited.reset(outside)


def _retry(task: PoisonTask, below: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    exc = kwargs["exc"] if "exc" in kwargs else next(iter(args[2:3]), None)
    with retrying(task, exc):
        return below(*args, **kwargs)


def _replace(task: PoisonTask, below: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with sent_at_once():
        return below(*args, **kwargs)
