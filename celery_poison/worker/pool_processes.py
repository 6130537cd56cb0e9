"""The processes that run tasks: hooks into the prefork pool, and how they ended, from themselves.

billiard tells it as text only, and not how much memory they had. Other pools than Celery's AsynPool and
billiard's Pool have nothing of this, and are left alone. :mod:`celery_poison.upstream.hooks` has the names.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isgenerator
from typing import Any, NamedTuple

import celery
from billiard.exceptions import WorkerLostError
from billiard.pool import Pool

from celery_poison.basics import procfs
from celery_poison.basics.procfs import MemoryGroup
from celery_poison.causes import NATIVE, NEAR, NO_EVIDENCE, Evidence
from celery_poison.cells.trial import Death
from celery_poison.upstream import hooks
from celery_poison.upstream.requests import TaskDied
from celery_poison.worker.crash_reports import CrashReport, CrashReports

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
        or not hooks.fits(hooks.Area.EXITS)
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


def forget_unsent(pool: Any, request: Any) -> None:
    """Take out of a pool what it could not pass on to a process: it would wait for that at its end."""
    cache = getattr(getattr(pool, "_pool", None), "_cache", None)
    if not isinstance(cache, dict):
        return
    for number, job in [*cache.items()]:
        if getattr(job, "_accept_callback", None) == request.on_accepted:
            del cache[number]


def hear_of_begun(consumer: Any) -> None:
    """Read what the processes of a pool have said: a task that has begun is not given back.

    The event loop reads it otherwise, and may have been kept from that by a broker that does not answer. What
    begins after this is void (:meth:`Rejoin.disconnected`, before).
    """
    pool: Any = getattr(consumer.pool, "_pool", None)
    hub = consumer.hub
    if hub is None or not hooks.fits(hooks.Area.RECONNECT):
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


#: Ended processes that are remembered until they are asked for.
_REMEMBERED = 64
#: Seconds within which a death is noticed; so long the kernel's count of kills is evidence about it.
_NOTICED_WITHIN = 10.0


class _Exit(NamedTuple):
    status: int
    peak_kb: int
    report: CrashReport


class Exits:
    """The ended pool processes of one worker.

    Args:
        reports: where they leave their crash reports; None: nowhere.
    """

    def __init__(self, reports: CrashReports | None) -> None:
        self._reports = reports
        #: Called with the pid of each process that has ended; they do not raise.
        self.hears: list[Callable[[int], object]] = []
        self._ended: dict[int, _Exit] = {}
        self._kills = Kills()

    @property
    def directory(self) -> str:
        """Where each process may leave files, named ``PID.…``; empty: nowhere."""
        return self._reports.path if self._reports else ""

    def follow(self, pool: Any) -> None:
        """Hear how the processes of a prefork pool end; safe to call again."""
        follow(pool, self._remember)

    def _remember(self, pid: int, status: int, peak_kb: int) -> _Exit:
        """Remember how a process ended, and what it still said, until that is asked for."""
        report = self._reports.read(pid) if self._reports else CrashReport()
        while len(self._ended) >= _REMEMBERED:
            self._ended.pop(next(iter(self._ended)))
        self._ended[pid] = found = _Exit(status, peak_kb, report)
        for hear in self.hears:
            hear(pid)
        return found

    def of_cell(self, pid: int, death: Death) -> Evidence:
        """Remember how a cell ended, and return what is known about it."""
        found = self._remember(pid, death.status, death.peak // 1024)
        signum = -death.status if death.status < 0 else None
        is_by_kill = signum == signal.SIGKILL and death.was_watched
        return self._evidence(found, signum, oom=bool(death.why) if is_by_kill else None)

    def look(self) -> None:
        """Keep the kernel's count of kills; to be called now and then."""
        self._kills.look()

    def _evidence(self, found: _Exit, signum: int | None, *, oom: bool | None) -> Evidence:
        report = found.report
        return Evidence(
            signal=signum,
            exit=found.status if found.status >= 0 else None,
            oom=oom,
            rss_kb=found.peak_kb or None,
            limit_kb=self._kills.limit_kb,
            stack=report.stack if report.raised or (signum in NATIVE and not report.asked) else (),
            recursion=report.recursion and signum in NATIVE,
        )

    def evidence_of(self, error: BaseException, pid: int | None) -> Evidence:
        """Return the evidence of a death beside its cause.

        Args:
            error: what Celery was told.
            pid: of the process that ran it, if it has begun.
        """
        if isinstance(error, TaskDied) and error.evidence is not None:
            known = error.evidence  # a trial's may have a limit of its own
            return known if known.limit_of else replace(known, limit_kb=self._kills.limit_kb)
        if not pid or pid == os.getpid():
            return NO_EVIDENCE
        found = self._ended.pop(pid, None) if isinstance(error, WorkerLostError) else None
        if found is None:  # it has told of its end itself, and may not have ended yet
            return replace(self.so_far(pid), stack=self._raised(pid))
        signum = -found.status if found.status < 0 else None
        if found.report.signal is not None:
            signum = found.report.signal  # billiard's handler turns it into an exit, or a further signal
        is_by_kill = signum == signal.SIGKILL
        oom = self._kills.was_for_memory(found.peak_kb) if is_by_kill else None
        return self._evidence(found, signum, oom=oom)

    def _raised(self, pid: int) -> tuple[str, ...]:
        """Return where a process raised what ends it; () where it has not said."""
        if (ended := self._ended.get(pid)) is not None:
            report = ended.report
        else:
            report = self._reports.read(pid, forget=False) if self._reports else CrashReport()
        return report.stack if report.raised else ()

    def hanging(self, pid: int) -> Evidence:
        """Return the evidence of a process that has used up its time: its memory, and its stack."""
        if (ended := self._ended.get(pid)) is not None:  # a cell, which was asked before it was killed
            return replace(self.so_far(pid), stack=ended.report.stack)
        stack = self._reports.where(pid) if self._reports and pid and pid != os.getpid() else ()
        return replace(self.so_far(pid), stack=stack)

    def ask(self, pid: int) -> int | None:
        """Have a process write down where it is, as :meth:`CrashReports.ask`; None: it cannot."""
        return self._reports.ask(pid) if self._reports else None

    def wake(self, pid: int) -> int | None:
        """As :meth:`ask`, without a signal, as :meth:`CrashReports.wake`."""
        return self._reports.wake(pid) if self._reports else None

    def answer(self, pid: int, since: int) -> tuple[str, ...]:
        """Return the answer of a process, as :meth:`CrashReports.answer`."""
        return self._reports.answer(pid, since) if self._reports else ()

    def so_far(self, pid: int) -> Evidence:
        """Return the evidence of a process that may live on: its memory."""
        found = self._ended.get(pid)
        return Evidence(
            rss_kb=found.peak_kb if found else procfs.peak_kb(pid) or None, limit_kb=self._kills.limit_kb
        )


class Kills:
    """The kernel's kills for lack of memory, in this control group, or on a machine without limits."""

    def __init__(self) -> None:
        self._group = MemoryGroup()
        self._is_limited = self._group.limit() is not None
        self.limit_kb = self._group.allowed() // 1024 or None
        #: Times and counts; the first one is so old that a death since cannot be unnoticed.
        self._counts = deque([(time.monotonic(), self._group.kills())])

    def look(self) -> None:
        now = time.monotonic()
        self._counts.append((now, self._group.kills()))
        while len(self._counts) > 1 and self._counts[1][0] < now - _NOTICED_WITHIN:
            self._counts.popleft()

    def was_for_memory(self, peak_kb: int) -> bool:
        """Whether a process that was killed a moment ago had used up the memory. Each kill is told once."""
        limit = self.limit_kb or 0
        before, count = self._counts[0][1], self._group.kills()
        # Of a whole machine's kills only one that fits the process is its own.
        killed = count > before and (self._is_limited or 2 * peak_kb >= limit)
        if killed:
            self._counts = deque((at, seen + 1) for at, seen in self._counts)
        return killed or (limit > 0 and peak_kb >= NEAR * limit)
