"""What a suspect has left in its cell: it could harm the next one, and would be blamed on it."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import Any, NamedTuple

from celery_poison.forking import real_thread_starter

#: Bytes that a suspect may leave behind for the next one.
_BYTES = 64 * 1024 * 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Remains(NamedTuple):
    """What there is in this process besides the one who asks."""

    threads: int
    greenlets: int
    children: int
    memory: int

    def is_no_more_than(self, before: Remains) -> bool:
        *mine, memory = self
        *his, memory_before = before
        return memory <= memory_before + _BYTES and all(a <= b for a, b in zip(mine, his, strict=True))


def remains() -> Remains:
    """Count this process's threads, greenlets and children; its memory is in bytes."""
    gc.collect()
    threads = os.listdir("/proc/self/task")
    children = 0
    for thread in threads:
        with suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
            children += len(file.read().split())
    with open("/proc/self/statm") as file:
        memory = int(file.read().split()[1]) * _PAGE
    greenlets, helpers = _greenlets_and_helpers()
    return Remains(len(threads) - helpers, greenlets, children, memory)


def _greenlets_and_helpers() -> tuple[int, int]:
    """Return how many of this thread's greenlets have not ended, and how many threads serve greenlets.

    Those are gevent's or eventlet's own, for calls that would block; they stay.
    """
    if real_thread_starter() is None:
        return 0, 0
    library: Any = sys.modules["greenlet"]
    here = _first_of_thread(library.getcurrent())
    found = [each for each in gc.get_objects() if isinstance(each, library.greenlet)]
    tpool = sys.modules.get("eventlet.tpool")
    helpers = len(tpool._threads) if tpool is not None else 0
    for hub in (each for each in found if hasattr(each, "_threadpool")):  # each thread's that has greenlets
        helpers += hub._threadpool.size if hub._threadpool is not None else 0
    return sum(not each.dead and _first_of_thread(each) is here for each in found), helpers


def _first_of_thread(greenlet: Any) -> Any:
    while greenlet.parent is not None:
        greenlet = greenlet.parent
    return greenlet
