"""Threads of the operating system, also where gevent or eventlet have put greenlets in their place.

A greenlet cannot beat while a task keeps the interpreter busy, and its worker would be taken for dead. A
real thread can; but it must not share locks or connections with greenlets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from celery_poison.forking import real_thread_starter


def start(work: Callable[[], None], name: str) -> None:
    """Run ``work`` in a real thread that does not keep the process alive."""
    begin = real_thread_starter()
    if begin is None:
        threading.Thread(target=work, name=name, daemon=True).start()
    else:
        begin(work, ())
