"""How the processes of a prefork pool ended, from the processes themselves.

billiard tells it as text only, and not how much memory they had.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple

from billiard.exceptions import WorkerLostError

from celery_poison import procfs
from celery_poison.causes import NATIVE, NEAR, NO_EVIDENCE, Evidence
from celery_poison.procfs import MemoryGroup
from celery_poison.requests import TaskDied
from celery_poison.sandbox.trial import Death
from celery_poison.worker import prefork
from celery_poison.worker.crash_reports import CrashReport, CrashReports

#: Ended processes that are remembered until somebody asks for them.
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
        self._ended: dict[int, _Exit] = {}
        self._kills = Kills()

    def follow(self, pool: Any) -> None:
        """Hear how the processes of a prefork pool end; safe to call again."""
        prefork.follow(pool, self._ended_process)

    def _ended_process(self, pid: int, status: int, peak_kb: int) -> None:
        self.note(pid, status, peak_kb, self._reports.read(pid) if self._reports else CrashReport())

    def note(self, pid: int, status: int, peak_kb: int, report: CrashReport) -> None:
        """Remember how a process ended, until somebody asks."""
        while len(self._ended) >= _REMEMBERED:
            self._ended.pop(next(iter(self._ended)))
        self._ended[pid] = _Exit(status, peak_kb, report)

    def of_cell(self, pid: int, death: Death) -> Evidence:
        """Remember how a cell ended, and return what is known about it."""
        report = self._reports.read(pid) if self._reports else CrashReport()
        self.note(pid, death.exit_code, death.peak // 1024, report)
        signum = -death.exit_code if death.exit_code < 0 else None
        return Evidence(
            signal=signum,
            exit=death.exit_code if signum is None else None,
            oom=bool(death.why) if signum == signal.SIGKILL and death.status is not None else None,
            rss_kb=death.peak // 1024 or None,
            limit_kb=self.limit_kb,
            stack=report.stack if signum in NATIVE else (),
            recursion=report.recursion and signum in NATIVE,
        )

    def look(self) -> None:
        """Keep the kernel's count of kills; to be called now and then."""
        self._kills.look()

    def evidence(self, pid: int) -> Evidence | None:
        """Return how the pool process ended; None where that is not known."""
        found = self._ended.pop(pid, None)
        if found is None:
            return None
        signum = -found.status if found.status < 0 else None
        if found.report.signal is not None:
            signum = found.report.signal  # billiard's handler turns it into an exit, or a further signal
        return Evidence(
            signal=signum,
            exit=found.status if found.status >= 0 else None,
            oom=self._kills.was_for_memory(found.peak_kb) if signum == signal.SIGKILL else None,
            rss_kb=found.peak_kb,
            limit_kb=self._kills.limit_kb,
            stack=found.report.stack if signum in NATIVE else (),
            recursion=found.report.recursion and signum in NATIVE,
        )

    def evidence_of(self, error: BaseException, pid: int | None) -> Evidence:
        """Return what is known about a death beside its cause.

        Args:
            error: what Celery was told.
            pid: of the process that ran it, if it has begun.
        """
        if isinstance(error, TaskDied) and error.evidence is not None:
            return replace(error.evidence, limit_kb=self.limit_kb)
        if not pid or pid == os.getpid():
            return NO_EVIDENCE
        return (isinstance(error, WorkerLostError) and self.evidence(pid)) or self.so_far(pid)

    @property
    def limit_kb(self) -> int | None:
        """Memory that this worker's processes may use."""
        return self._kills.limit_kb

    def so_far(self, pid: int) -> Evidence:
        """Return what is known of a process that may live on: its memory."""
        found = self._ended.get(pid)
        return Evidence(
            rss_kb=found.peak_kb if found else procfs.peak_kb(pid) or None, limit_kb=self._kills.limit_kb
        )


class Kills:
    """What the kernel killed for want of memory, in this control group, or on a machine without limits."""

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
