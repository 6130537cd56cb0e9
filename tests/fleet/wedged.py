"""Ways for a worker to live and not to work: `celery worker -I` this, and `celery control` one of them."""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from celery.signals import worker_init, worker_process_init
from celery.worker.control import control_command


@worker_init.connect
def set_own_timer(**_: Any) -> None:
    """What a user of faulthandler does for its own ends."""
    if path := os.environ.get("OWN_TIMER"):
        faulthandler.dump_traceback_later(1, file=Path(path).open("w"))  # noqa: SIM115 - kept open


@worker_process_init.connect
def hang_or_exit(**_: Any) -> None:
    """Hang while the file BAD_INIT is there; exit where it says so."""
    while os.path.exists(path := os.environ.get("BAD_INIT", "")):
        if Path(path).read_text() == "exit":
            os._exit(1)
        time.sleep(0.1)


@control_command(args=[("path", str)])
def hold_interpreter(state: Any, path: str, **_: Any) -> None:
    """Wait in native code that does not release the interpreter's lock, until a lock on ``path`` is free."""
    with open(path) as file:
        ctypes.PyDLL(None).flock(file.fileno(), fcntl.LOCK_EX)


@control_command(args=[("path", str)])
def hold_loop(state: Any, path: str, **_: Any) -> None:
    """Stand on the event loop while ``path`` is there."""
    while os.path.exists(path):
        time.sleep(0.1)


@control_command(args=[("path", str)])
def hold_log(state: Any, path: str, **_: Any) -> None:
    """Have a thread hold the locks of the log: the loop stands at its next line."""
    handlers = [*logging.getLogger().handlers, *logging.getLogger("celery").handlers]

    def hold() -> None:
        for each in handlers:
            each.acquire()
        hold_loop(state, path)
        for each in handlers:
            each.release()

    threading.Thread(target=hold, daemon=True).start()
