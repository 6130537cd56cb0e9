"""Tasks on whose end a project has hung a row that is marked, and a lock that is freed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from typing import Any

from celery import Celery, Task, signals

from celery_poison import guarded
from tests.apps.factory import DEFAULTS
from tests.apps.marks import marks


def _leave(what: str, id: str, n: Any) -> None:
    marks(os.environ["MARKS_URL"]).leave(what, id, "start", n)


class Row(Task):
    abstract = True

    def on_failure(self, exc: BaseException, id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        _leave("on_failure", id, [type(exc).__name__, *args, kwargs, self.request.id == id])
        if args[0] == "kills" and len(marks(os.environ["MARKS_URL"]).all("on_failure")) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if args[0] == "raises":
            raise LookupError("a bug in on_failure")

    def after_return(self, status: str, retval: Any, id: str, *_: Any) -> None:
        _leave("after_return", id, [status, type(retval).__name__])


def build(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    app = Celery("hooks", set_as_current=current)
    app.conf.update(DEFAULTS)
    app.conf.update(json.loads(environ["POISON_SETTINGS"]))
    app.conf.update(broker_url=environ["BROKER_URL"], result_backend=environ["RESULT_BACKEND"])
    if environ.get("POISON_REDIS_URL"):
        app.conf.poison_redis_url = environ["POISON_REDIS_URL"]

    def crash(what: str, more: int = 0) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    name = "hooks.renamed" if "RENAMED" in environ else "hooks.crash"
    guarded(app.task(crash, base=Row, name=name, shared=False))
    if current:

        @signals.task_failure.connect(weak=False)
        def heard(sender: Any, task_id: str, exception: BaseException, **_: Any) -> None:
            _leave("task_failure", task_id, type(exception).__name__)

    return app


app = build(os.environ, current=True) if "BROKER_URL" in os.environ else None
