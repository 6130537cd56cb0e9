"""Workers that are killed once, when what quarantine could not take is on disk and not acknowledged yet."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery_poison.keep.spool import Spool
from tests.worker.apps import build, here

app = build(os.environ, current=True)

_put = Spool.put


def put(self: Any, message: Any) -> None:
    _put(self, message)
    if not here().all("spooling", "dies"):
        here().leave("spooling", message.start.id, "dies")
        os.kill(-os.getpgrp(), signal.SIGKILL)


Spool.put = put  # type: ignore[method-assign]
