"""The hooks into the prefork pool: Celery's AsynPool, billiard's Pool and its processes.

Other pools have nothing of this, and are left alone. The names are in :mod:`celery_poison.hooks`.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import isgenerator
from typing import Any

import celery
from billiard.pool import Pool

from celery_poison import hooks

#: Is told of a process that ended: pid, exit code (negative: the signal), and the most memory it had, in kB.
Ended = Callable[[int, int, int], object]

#: Milliseconds for the rest of a result that does not fit into the pipe at once.
REST_OF_A_RESULT = 1000
#: Seconds between two looks at a process that is waited for.
A_MOMENT = 0.02


def follow(pool: Any, ended: Ended) -> None:
    """Tell ``ended`` how every process of a pool ends; safe to call again."""
    inner = getattr(pool, "_pool", None)
    if (
        not isinstance(inner, Pool)
        or "_create_worker_process" in vars(inner)
        or not hooks.fits(hooks.Part.EXITS)
    ):
        return
    create = inner._create_worker_process

    def create_and_follow(index: int) -> Any:
        process = create(index)
        _follow(process, inner, ended)
        return process

    inner._create_worker_process = create_and_follow
    for process in list(inner._pool):
        _follow(process, inner, ended)


def _follow(process: Any, inner: Pool, ended: Ended) -> None:
    popen = process._popen
    if popen is not None and popen.method == "fork":
        popen.poll = partial(_poll, process, inner, ended)


def _poll(process: Any, inner: Pool, ended: Ended, flag: int = os.WNOHANG) -> int | None:
    """As billiard's, but the kernel is asked for the process's memory too, and who waits goes on reading."""
    popen = process._popen
    while popen.returncode is None:
        try:
            pid, status, usage = os.wait4(popen.pid, os.WNOHANG)
        except OSError:
            return None
        if pid == popen.pid:
            popen.returncode = os.waitstatus_to_exitcode(status)
            ended(pid, popen.returncode, usage.ru_maxrss)
        elif flag == os.WNOHANG:
            break
        else:
            _hear_last_words(process, inner)
    code: int | None = popen.returncode
    return code


def _hear_last_words(process: Any, inner: Pool) -> None:
    """Read one result of a process that is waited for.

    It does not end for 30 seconds while one is unread, and Celery reads none any more once it waits for
    nothing: the end of a task that it has lost sight of is lost then, and the worker killed as too slow.
    """
    reader = process.outq._reader
    try:
        if reader.poll(A_MOMENT):
            inner._result_handler.on_state_change(_received(reader))
    except (OSError, EOFError):
        time.sleep(A_MOMENT)


def _received(reader: Any) -> Any:
    """Return one result, whole. Celery's event loop goes on with this pipe, and must never wait for it.

    It may be about to read the same result: a cold shutdown runs in a signal handler, on top of the loop.
    """
    os.set_blocking(reader.fileno(), True)
    try:
        return reader.recv()
    finally:
        os.set_blocking(reader.fileno(), False)


def keep_what_runs(pool: Any) -> None:
    """Let no lost broker connection make the pool forget the tasks that it runs; safe to call again.

    Before 5.6 Celery forgot them where nothing was being written to a process at that moment: the end of
    such a task was never heard of, nor the death of its process
    (https://github.com/celery/celery/issues/8541).
    """
    inner, flush = getattr(pool, "_pool", None), getattr(pool, "flush", None)
    if celery.VERSION >= (5, 6) or flush is None or not hasattr(inner, "_fileno_to_outq"):
        return
    if isinstance(flush, partial):
        return
    pool.flush = partial(_flush, inner, flush)


def watch_again(pool: Any) -> None:
    """Let the event loop begin although a process has ended that the pool has not missed yet.

    Celery stops watching it as soon as its pipe closes, which is a moment before it can be waited for. A loop
    that begins in between takes what is left of the watch for a file descriptor, and ends the worker
    (https://github.com/celery/celery/issues/9250).
    """
    for process in list(getattr(getattr(pool, "_pool", None), "_pool", ())):
        if vars(process).get("_sentinel_poll", 0) is None:
            # As Celery makes it; found ready at once. Before 5.6 it must not be missing either.
            process._sentinel_poll = os.dup(process._popen.sentinel)


def _flush(inner: Any, flush: Callable[[], object]) -> None:
    running = {number: job for number, job in inner._cache.items() if job._accepted}
    flush()
    for number, job in running.items():
        if not job.ready():
            inner._cache[number] = job


def hear_of_begun(consumer: Any) -> None:
    """Read what the processes of a pool have said: a task that has begun is not given back.

    The event loop reads it otherwise, and may have been kept from that by a broker that does not answer. What
    begins after this is void (:meth:`ReconnectCleanup.disconnected`, before).
    """
    pool: Any = getattr(consumer.pool, "_pool", None)
    hub = consumer.hub
    if hub is None or not hooks.fits(hooks.Part.RECONNECT):
        return
    for fd in [*getattr(pool, "_fileno_to_outq", ())]:
        with suppress(OSError, EOFError):  # its process is gone
            _read_all(fd, pool, hub)


def _read_all(fd: int, pool: Any, hub: Any) -> None:
    said = select.poll()
    said.register(fd, select.POLLIN)
    rest = hub.readers.get(fd, (None,))[0]
    while said.poll(REST_OF_A_RESULT * isgenerator(rest)):
        if isgenerator(rest):
            next(rest, None)
        else:
            pool.handle_result_event(fd)
        if fd not in hub.readers:
            return  # its process is gone
        rest = hub.readers[fd][0]
