"""Threads of the operating system, also where gevent or eventlet have put greenlets in their place.

A greenlet cannot beat while a task keeps the interpreter busy, and its worker would be taken for dead. A
real thread can; but it must not share locks or connections with greenlets.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any


def start(work: Callable[[], None], name: str) -> None:
    """Run ``work`` in a real thread that does not keep the process alive."""
    begin = _original_start()
    if begin is None:
        threading.Thread(target=work, name=name, daemon=True).start()
    else:
        begin(work, ())


def _original_start() -> Any:
    """Return what starts a real thread where ``threading`` does not."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("threading"):
        return gevent.get_original("_thread", "start_new_thread")
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        return eventlet.original("_thread").start_new_thread
    return None
