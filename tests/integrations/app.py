"""What a worker is started with that another package shares: BESIDE names it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_poison import guarded
from tests.apps.factory import build_app
from tests.integrations.things import AFTER, BEFORE


def build(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    """The fleet's app; only in a worker is the other package there from the beginning."""
    if current:
        BEFORE.get(environ["BESIDE"], lambda: None)()
    app = build_app(environ, current=current)
    AFTER.get(environ["BESIDE"], lambda app: None)(app)

    @guarded
    @app.task(bind=True, shared=False, name="fleet.raises")
    def raises(self: Any) -> None:
        raise LookupError("an ordinary bug")

    return app


if "BESIDE" in os.environ:
    app = build(os.environ, current=True)
