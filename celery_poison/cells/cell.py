"""A cell: a process that is forked as the pool's are, runs one suspect, and ends.

``nursery.py`` forks it, through ``watcher.py``. It is set up as billiard and Celery set up a pool process.
What it says is two messages on a socket: ``("accepted", pid, time)``, and ``("result",)`` when its result
stands where its job stood.
"""

from __future__ import annotations

import _socket
import atexit
import os
import pickle
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from billiard import common
from billiard.context import ForkProcess
from billiard.einfo import ExceptionInfo
from billiard.pool import MaybeEncodingError, soft_timeout_sighandler
from celery import Celery

from celery_poison import causes
from celery_poison.basics.forking import have_own_hub
from celery_poison.ledger import Ledger
from celery_poison.upstream.requests import read_end

#: Makes a forked process ready for one run, given the app, a ledger (not connected yet; None: the app was
#: loaded anew), and the descriptor of the memory with the worker's lease.
Prepare = Callable[[Celery, Ledger | None, int], object]

#: Seconds that are left to threads of the background when a run has ended, as a pool process leaves them.
LAST_WORDS = 1.0
#: What a process may hold before its watcher has set a limit.
_UNCONFINED = resource.getrlimit(resource.RLIMIT_DATA)


class Job(NamedTuple):
    """The job of a cell: ``prepare`` first, then the call that a pool process would make.

    Attributes:
        slot: the index that a pool process would have; ``number``: part of its name.
    """

    prepare: Prepare
    slot: int
    number: int
    target: Callable[..., Any]
    arguments: tuple[Any, ...]


def pair() -> tuple[Any, Any]:
    """Return connected sockets of the system, also where greenlets have others; the first never blocks."""
    ours, other = _socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    ours.setblocking(False)
    return ours, other


def info_of(error: Exception) -> ExceptionInfo:
    """Return ``error`` as a pool process sends one."""
    try:
        raise error
    except Exception:
        return ExceptionInfo()


def put(box: Any, value: Any) -> None:
    """Put the job, and then its result, into the memory, a file, that a worker shares with one cell.

    It raises what the value's parts raise when they are pickled; then the box is as it was.
    """
    data = pickle.dumps(value)
    box.seek(0)
    box.write(data)
    box.flush()


def take(box: Any) -> Any:
    """Return the content of a box; raise the error of reading it, such as one of an unknown class."""
    box.seek(0)
    return pickle.load(box)


def be_cell(said: Any, box: Any, home: tuple[Any, ...]) -> int:
    """Be a process of the pool, which talks to its worker by the socket ``said``; return the exit code.

    ``home`` is what ``prepare`` of the job in the ``box`` is given.
    """
    have_own_hub()
    atexit._clear()  # what the worker does at its end, such as to remove its files
    job: Job = take(box)
    name = f"ForkPoolWorker-{job.number}"
    process: Any = ForkProcess(target=_run, args=(job, said, box, home), name=name, daemon=True)
    process.index = job.slot
    code: int = process._bootstrap()
    if not code:  # it has given its result
        _take_leave()
    return code


def _take_leave() -> None:
    """Let what reports in the background finish: a pool process would have gone on; its worker sets a limit.

    Threads are waited for, and what this process has registered to be done at its end is done, as at the end
    of any Python process. Daemon threads, such as those that send errors or spans, have ``LAST_WORDS``.
    """
    with suppress(Exception):  # it is not that of greenlets
        threading._shutdown()  # type: ignore[attr-defined]
    while not all(each.daemon for each in _background()):
        time.sleep(0.01)
    with suppress(Exception):
        atexit._run_exitfuncs()
    until = time.monotonic() + LAST_WORDS
    while _background() and time.monotonic() < until:
        time.sleep(0.01)


def _background() -> list[threading.Thread]:
    ours = threading.main_thread(), threading.current_thread()  # two, with greenlets
    others = (each for each in threading.enumerate() if each not in ours)
    return [each for each in others if not each.name.startswith("poison-")]


def _run(job: Job, said: Any, box: Any, home: tuple[Any, ...]) -> None:
    from celery.concurrency.prefork import process_destructor  # not in other pools' workers: hooks.py

    with suppress(AttributeError):  # before billiard 4.3
        common.clear_terminate_handler_fired()
    job.prepare(*home)
    # A service manager sends this to every process of its group when the worker is to end: that waits for
    # the trial. What the task itself has started is not affected.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    code = 1
    try:
        said.send(pickle.dumps(("accepted", os.getpid(), time.monotonic())))
        ended = _try(job.target, job.arguments)
        _end_if_confined(ended[1])
        try:
            put(box, ended)
        except Exception as error:
            put(box, (False, info_of(MaybeEncodingError(error, ended[1]))))
        said.send(pickle.dumps(("result",)))
        code = 0
    finally:
        process_destructor(os.getpid(), code)


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
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    except Exception as error:  # also the soft limit, when the task had just ended
        return False, info_of(error)
