"""Tasks with Request classes of their own: `celery -A tests.strangers.requests_app worker`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from celery import Celery, Task
from celery.worker.request import Request

from celery_poison import guarded
from celery_poison.worker.request import GuardedRequest
from tests.apps.factory import DEFAULTS
from tests.apps.marks import marks


def leave(what: str, task: str) -> None:
    marks(os.environ["MARKS_URL"]).leave(what, "", "start", task)


class Manual(Request):
    """As in Celery's manual."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        leave("timeout", self.task.name)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        leave("failure", self.task.name)

    def acknowledge(self) -> None:
        super().acknowledge()
        leave("acknowledged", self.task.name)


class Silent(Request):
    """It calls no `super()`; of what Celery overrides itself it never hears."""

    def on_failure(self, *_: Any, **__: Any) -> None:
        leave("failure", self.task.name)

    def on_timeout(self, *_: Any) -> None:
        leave("timeout", self.task.name)

    def on_success(self, *_: Any, **__: Any) -> None:
        leave("never", self.task.name)

    def execute_using_pool(self, *_: Any, **__: Any) -> None:
        leave("never", self.task.name)


class Named(Request):
    """It is given by its name, and does not let others begin."""

    def __init__(self, *args: Any, **options: Any) -> None:
        Request.__init__(self, *args, **options)


class Ours(GuardedRequest):
    def on_failure(self, *args: Any, **options: Any) -> Any:
        leave("failure", self.task.name)
        return super().on_failure(*args, **options)


KINDS: Mapping[str, Any] = {
    "manual": Manual,
    "silent": Silent,
    "named": f"{__name__}:Named",
    "ours": Ours,
}


def _register(app: Celery, kind: str, request: Any) -> None:
    base = type("Base", (Task,), {"Request": request, "abstract": True})

    def dies() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def hangs() -> None:
        time.sleep(600)

    def works(n: int) -> int:
        return n

    for run, options in ((dies, {}), (works, {}), (hangs, {"time_limit": 1, "acks_on_timeout": False})):
        name = f"{kind}.{run.__name__}"
        guarded(max_failures=1)(app.task(run, base=base, name=name, shared=False, **options))


def build(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    app = Celery("requests", set_as_current=current)
    app.conf.update(DEFAULTS)
    app.conf.update(broker_url=environ["BROKER_URL"], result_backend=environ["RESULT_BACKEND"])
    if environ.get("POISON_REDIS_URL"):
        app.conf.poison_redis_url = environ["POISON_REDIS_URL"]
    for kind, request in KINDS.items():
        _register(app, kind, request)
    return app


app = build(os.environ, current=True) if "BROKER_URL" in os.environ else None
