"""Where the event loop is when the whole process stands still: native code holds the interpreter's lock.

No Python code runs then. A timer of the kernel is wound up again each second; when nobody does that any more,
it sends a signal to the thread of the loop, which writes down its own calls, as a dying process does.
``faulthandler.dump_traceback_later`` would let another thread read the calls of threads that run, which ends
the process now and then, and would hang each process that is forked meanwhile when it exits.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

from celery_poison.basics.frames import frames_in
from celery_poison.worker.crash_reports import DUMP

#: Linux: the signal goes to one thread.
_TO_THREAD = 4


class _Event(ctypes.Structure):
    """``struct sigevent``."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("rest", ctypes.c_int * 11),
    )


_Moments = ctypes.c_long * 4


class LoopTimer:
    """The timer of one thread.

    Args:
        file: to which that thread writes.
    """

    def __init__(self, library: Any, timer: ctypes.c_void_p, file: int) -> None:
        self._library, self._timer, self._file = library, timer, file

    @classmethod
    def of_this_thread(cls, path: str) -> LoopTimer | None:
        """Return that of the main thread; None in others, without such a timer, or where its signal is used.

        It stays for as long as the process: without a handler, a late signal would end it.
        """
        is_main = threading.current_thread() is threading.main_thread()
        is_free = signal.getsignal(DUMP) is signal.SIG_DFL
        if not is_main or not is_free or ctypes.sizeof(ctypes.c_void_p) != 8:
            return None
        with suppress(OSError, AttributeError, RuntimeError, ValueError):
            library, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
            event = _Event(None, DUMP, _TO_THREAD, threading.get_native_id())
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
            faulthandler.register(DUMP, file, all_threads=False)
            made = library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer))
            if made == 0:
                return cls(library, timer, file)
        return None

    def again(self, seconds: float) -> tuple[str, ...]:
        """Wind it up again; return where the thread was if it had run down, innermost call first."""
        self._set(seconds)
        if not os.fstat(self._file).st_size:
            return ()
        text = os.pread(self._file, 64 * 1024, 0).decode("utf-8", "replace")
        os.ftruncate(self._file, 0)
        return frames_in(text)

    def end(self) -> None:
        """Stop it."""
        self._set(0.0)

    def _set(self, seconds: float) -> None:
        moments = _Moments(0, 0, int(seconds), int(seconds % 1 * 1e9))
        self._library.timer_settime(self._timer, 0, moments, None)
