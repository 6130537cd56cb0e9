"""The fleet with tasks that hear of a failure: `celery -A tests.desk.app worker`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_poison import guarded
from tests.apps.factory import build_app

#: What errbacks of the newer kind were told in this process: (task id, exception).
heard: list[tuple[str, BaseException]] = []


def build(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    app = build_app(environ, current=current)

    @guarded
    @app.task(shared=False, name="fleet.nobody_asks", ignore_result=True)
    def nobody_asks() -> None:
        """Its result is of no interest."""

    @guarded
    @app.task(shared=False, name="fleet.takes_all")
    def takes_all(*args: Any, **kwargs: Any) -> None:
        """Takes any arguments."""

    @app.task(shared=False, name="fleet.hears")
    def hears(request: Any, error: BaseException, traceback: Any) -> None:
        heard.append((request.id, error))

    return app


if "BROKER_URL" in os.environ:
    app = build(os.environ, current=True)
