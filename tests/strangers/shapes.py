"""Tasks whose classes override what Celery calls, in the ways that projects do.

Of each shape there are four: `charge` leaves a mark once for each idempotency key, `order` publishes and then
fails, so that nothing may leave, `again` publishes and asks for a retry, and `huge` runs out of memory.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery, Task

from celery_poison import PoisonTask, guarded
from tests.apps.factory import DEFAULTS
from tests.apps.marks import marks

Make = Callable[..., Any]


def leave(task: str, n: Any = None) -> None:
    marks(os.environ["MARKS_URL"]).leave(task, "", "start", n)


class Scoped(Task):
    """The pattern of Flask's manual."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class Named(Task):
    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Task.__call__(self, *args, **kwargs)


class Derived(PoisonTask):
    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class Unbound(PoisonTask):
    """It keeps to itself that it was bound."""

    abstract = True

    @classmethod
    def on_bound(cls, app: Celery) -> None: ...


class Silent(Task):
    """It calls no `super()` anywhere."""

    abstract = True

    def before_start(self, *_: Any) -> None: ...

    def on_success(self, *_: Any) -> None: ...

    def after_return(self, *_: Any) -> None: ...

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        return Task.retry(self, *args, **kwargs)


def _around(call: Callable[..., Any]) -> Callable[..., Any]:
    def around(self: Task, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    return around


def _wrapped(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    return wrapped


def _with_base(base: type) -> Make:
    return lambda app, run, name, **options: guarded(**options)(
        app.task(run, base=base, name=name, shared=False)
    )


def _of_base(base: type) -> Make:
    return lambda app, run, name, **options: app.task(run, base=base, name=name, shared=False, **options)


def _decorated(app: Celery, run: Any, name: str, **options: Any) -> Any:
    return guarded(**options)(app.task(_wrapped(run), name=name, shared=False))


def _of_class(app: Celery, run: Any, name: str, **options: Any) -> Any:
    members = {"name": name, "run": staticmethod(run), "__call__": Scoped.__call__}
    return guarded(**options)(app.register_task(type("Registered", (Task,), members)()))


def _patched_later(app: Celery, run: Any, name: str, **options: Any) -> Any:
    task = _plain(app, run, name, **options)
    type(task).__call__ = Scoped.__call__
    return task


def _replaced_later(app: Celery, run: Any, name: str, **options: Any) -> Any:
    task = _plain(app, run, name, **options)
    task.run = _wrapped(task.run)
    return task


def _retried(app: Celery, run: Any, name: str, **options: Any) -> Any:
    retries = {"autoretry_for": (OverflowError,), "base": Scoped}
    return guarded(**options)(app.task(run, name=name, shared=False, **retries))


def _plain(app: Celery, run: Any, name: str, **options: Any) -> Any:
    return guarded(**options)(app.task(run, name=name, shared=False))


#: By the name of the shape: how its tasks are made.
SHAPES: Mapping[str, Make] = {
    "scoped": _with_base(Scoped),
    "named": _with_base(Named),
    "derived": _of_base(Derived),
    "unbound": _of_base(Unbound),
    "silent": _with_base(Silent),
    "decorated": _decorated,
    "registered": _of_class,
    "patched_later": _patched_later,
    "replaced_later": _replaced_later,
    "retried": _retried,
}
#: What a whole app is made with.
WHOLE = ("task_cls", "app.Task", "annotated")


def _register(app: Celery, shape: str, make: Make) -> None:
    @app.task(name=f"{shape}.mail", shared=False)
    def mail() -> None:
        leave(f"{shape}.mail")

    def charge(n: int) -> None:
        leave(f"{shape}.charge", n)

    def order() -> None:
        mail.delay()
        raise ValueError("no order")

    def huge() -> None:
        raise MemoryError

    def again() -> None:
        task = app.tasks[f"{shape}.again"]
        mail.delay()
        if not task.request.retries:
            task.retry(countdown=0)

    for run, options in (
        (charge, {"idempotency_key": str}),
        (order, {"transactional_publish": True}),
        (huge, {"max_crashes": 1}),
        (again, {"transactional_publish": True}),
    ):
        make(app, run, f"{shape}.{run.__name__}", **options)


def build(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    """An app of the shape that POISON_SETTINGS names, or with the tasks of every shape."""
    settings = json.loads(environ["POISON_SETTINGS"])
    whole = settings.pop("whole", "")
    app = Celery("strange", set_as_current=current, **({"task_cls": Scoped} if whole == "task_cls" else {}))
    app.conf.update(DEFAULTS | settings)
    app.conf.update(broker_url=environ["BROKER_URL"], result_backend=environ["RESULT_BACKEND"])
    if environ.get("POISON_REDIS_URL"):
        app.conf.poison_redis_url = environ["POISON_REDIS_URL"]
    if whole == "app.Task":
        app.Task = Scoped
    if whole == "annotated":
        app.conf.task_annotations = {"*": {"@__call__": _around}}
    for shape, make in [(whole, _plain)] if whole else SHAPES.items():
        _register(app, shape, make)
    return app
