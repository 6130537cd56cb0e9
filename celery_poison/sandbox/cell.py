"""A cell: a process that is forked as the pool's are, runs one suspect, and ends.

``nursery.py`` forks it, through ``watcher.py``. It is set up as billiard and Celery set up a pool process.
What it says is two messages on a socket: ``("accepted", pid, time)``, and ``("result",)`` when its result
stands where its job stood.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from billiard import common
from billiard.context import ForkProcess
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import MaybeEncodingError, soft_timeout_sighandler
from celery import Celery

from celery_poison import causes
from celery_poison.requests import read_end
from celery_poison.sandbox.trial import Job, Order, info_of


class Box:
    """Memory that a worker shares with one cell: the job, and then its result."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def holding(cls, value: Any) -> Box:
        """Raises: Exception: whatever the value's parts raise when they are pickled."""
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        box = cls(os.memfd_create("poison-box"))
        box.put(data)
        return box

    def put(self, data: bytes) -> None:
        os.ftruncate(self.fd, 0)
        for start in range(0, len(data), 1 << 24):
            part = data[start : start + (1 << 24)]
            while part:
                part = part[os.pwrite(self.fd, part, os.fstat(self.fd).st_size) :]

    def take(self) -> Any:
        """Raises: Exception: whatever it holds cannot be read here, such as an error of an unknown class."""
        with open(os.dup(self.fd), "rb") as file:
            file.seek(0)
            return pickle.load(file)

    def close(self) -> None:
        os.close(self.fd)


def be_cell(order: Order, app: Celery, said: Any, box: Box, lease: int, *, is_fresh: bool) -> int:
    """Be a process of the pool; return the exit code.

    Args:
        said: the socket to the worker.
        lease: descriptor of the memory in which the worker keeps its lease.
        is_fresh: the app was loaded anew for this process.
    """
    _renew_greenlets()
    process: Any = ForkProcess(
        target=partial(_run, app, said, box, lease, is_fresh),
        name=f"ForkPoolWorker-{order.number}",
        daemon=True,
    )
    process.index = order.slot
    code: int = process._bootstrap()
    return code


def _renew_greenlets() -> None:
    """Let the hub of greenlets be this process's own."""
    if "gevent" in sys.modules:
        sys.modules["gevent"].reinit()
    if "eventlet.hubs" in sys.modules:
        hubs: Any = sys.modules["eventlet.hubs"]
        with suppress(AttributeError):
            del hubs._threadlocal.hub


def _run(app: Celery, said: Any, box: Box, lease: int, is_fresh: bool) -> None:
    from celery.concurrency.prefork import process_destructor  # not in other pools' workers: hooks.py

    with suppress(AttributeError):  # before billiard 4.3
        common.clear_terminate_handler_fired()
    job: Job = box.take()
    job.prepare(app, job.task, lease, is_fresh)
    # A service manager sends this to every process of its group when the worker is to end: that waits for
    # the trial. What the task itself has started is not affected.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    code = 0
    try:
        said.send(pickle.dumps(("accepted", os.getpid(), time.monotonic())))
        ok, value = _try(job.target, job.arguments)
        _end_if_confined(value)
        try:
            data = pickle.dumps((ok, value), protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            failed = MaybeEncodingError(error, value)
            data = pickle.dumps((False, info_of(failed)), protocol=pickle.HIGHEST_PROTOCOL)
        with suppress(OSError):
            box.put(data)
            said.send(pickle.dumps(("result",)))
    except BaseException:
        code = 1
        raise
    finally:
        process_destructor(os.getpid(), code)


#: What a process may hold before its watcher has set a limit.
_UNCONFINED = resource.getrlimit(resource.RLIMIT_DATA)


def _end_if_confined(value: Any) -> None:
    """End as one that got no memory, if a MemoryError met the limit that the watcher has set."""
    info = value[1] if isinstance(value, tuple) and value[0] else value
    error = getattr(info, "exception", None)
    error = getattr(error, "exc", error)
    is_confined = resource.getrlimit(resource.RLIMIT_DATA) != _UNCONFINED
    if is_confined and error is not None and read_end(error)[1] == causes.MEMORY_ERROR:
        os.kill(os.getpid(), signal.SIGKILL)


def _try(target: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Run the suspect; return whether it ran, and what a pool process would return or raise."""
    try:
        signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
        try:
            return True, target(*arguments)
        except Exception as error:
            return False, info_of(error)
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    except SoftTimeLimitExceeded as error:  # it came when the task had just ended
        return False, info_of(error)
