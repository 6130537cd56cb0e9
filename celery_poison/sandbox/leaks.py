"""What a suspect has left in its cell: it could harm the next one, and would be blamed on it."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any, NamedTuple

from celery_poison import procfs
from celery_poison.forking import real_thread_starter

#: Bytes that a suspect may leave behind for the next one.
_BYTES = 64 * 1024 * 1024


class LeakCheck:
    """Compares this process with what it was before its first suspect.

    What has been looked at is frozen: to collect the garbage among all objects of an app takes longer than
    most trials do, and what is new is little.
    """

    def __init__(self) -> None:
        self._hubs: list[Any] = []
        # What is frozen is not counted again: of greenlets each one that is found later is new.
        self._before = self._count()._replace(greenlets=0)

    def finds_nothing(self) -> bool:
        """Whether the last suspect has left nothing behind."""
        *counts, memory = self._count()
        *before, memory_before = self._before
        return memory <= memory_before + _BYTES and all(a <= b for a, b in zip(counts, before, strict=True))

    def _count(self) -> Remains:
        gc.collect()
        greenlets, helpers = self._greenlets_and_helpers()
        gc.freeze()
        threads, children = procfs.threads_and_children()
        return Remains(threads - helpers, greenlets, children, procfs.resident(os.getpid()))

    def _greenlets_and_helpers(self) -> tuple[int, int]:
        """Return how many new greenlets of this thread have not ended, and how many threads serve greenlets.

        Those are gevent's or eventlet's own, for calls that would block; they stay.
        """
        if real_thread_starter() is None:
            return 0, 0
        library: Any = sys.modules["greenlet"]
        here = _first_of_thread(library.getcurrent())
        found = [each for each in gc.get_objects() if isinstance(each, library.greenlet)]
        # Each thread that has greenlets has a hub.
        self._hubs += [each for each in found if hasattr(each, "_threadpool")]
        tpool = sys.modules.get("eventlet.tpool")
        helpers = len(tpool._threads) if tpool is not None else 0
        helpers += sum(hub._threadpool.size for hub in self._hubs if hub._threadpool is not None)
        return sum(not each.dead and _first_of_thread(each) is here for each in found), helpers


class Remains(NamedTuple):
    """What there is in this process besides the one who asks; memory in bytes."""

    threads: int
    greenlets: int
    children: int
    memory: int


def _first_of_thread(greenlet: Any) -> Any:
    while greenlet.parent is not None:
        greenlet = greenlet.parent
    return greenlet
