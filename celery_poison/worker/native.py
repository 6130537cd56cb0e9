"""Threads of the operating system, also where gevent or eventlet have put greenlets in their place.

A greenlet cannot beat while a task keeps the interpreter busy, and its worker would be taken for dead. A
real thread can; but it must not share locks or connections with greenlets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from celery_poison.forking import real_thread_starter

T = TypeVar("T")

#: Seconds between two looks at whether a call is done. A lock would have to be shared with greenlets.
_LOOK_AGAIN = 0.0005


def start(work: Callable[[], None], name: str) -> None:
    """Run ``work`` in a real thread that does not keep the process alive."""
    begin = real_thread_starter()
    if begin is None:
        threading.Thread(target=work, name=name, daemon=True).start()
    else:
        begin(work, ())


def call(work: Callable[[], T], seconds: float) -> T:
    """Return what ``work`` returns, in a real thread that is left to itself when it takes too long.

    Raises:
        TimeoutError: it took longer than ``seconds``.
        Exception: what ``work`` raised; what would end a process as a RuntimeError.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    start(attempt, "poison-call")
    deadline = time.monotonic() + seconds
    while not results and not errors:
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(_LOOK_AGAIN)
    if results:
        return results[0]
    (error,) = errors
    raise (
        error
        if isinstance(error, Exception) and not isinstance(error, TimeoutError)
        else RuntimeError(repr(error))
    )
