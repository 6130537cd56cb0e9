"""An app whose worker tells which of the plugin's files its main process and its pool run code of."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from celery.signals import worker_process_init, worker_ready

from tests.apps.factory import build_app
from tests.docs.tracing import TRACE, recorder


@worker_ready.connect
@worker_process_init.connect
def _trace(**_: Any) -> None:
    """The main thread alone: a worker's other threads work for nobody in particular."""
    assert threading.current_thread() is threading.main_thread()
    sys.setprofile(recorder(os.environ[TRACE]))


app = build_app(os.environ, current=True)
