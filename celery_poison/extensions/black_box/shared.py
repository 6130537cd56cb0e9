"""Whose memory grows in a process that tasks share: its threads tell by the pages that they touch first.

The kernel counts those for each thread. A thread is credited with what all others together cannot have taken,
so a task is rather credited with too little than with what another has taken. Greenlets share one thread: of
several that cannot be said.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from celery_poison.basics import procfs
from celery_poison.basics.forking import real_thread_starter
from celery_poison.worker import child

#: Bytes of a large page of the kernel's.
_LARGE = 2 << 20
#: So many threads are looked at each time; more of them only while memory grows.
FEW = 32
#: Bytes that a process may take between two looks without growing.
CALM = 64 << 10


def credited(taken: int, faults: Mapping[str, int], all_faults: int, page: int) -> dict[str, int]:
    """Return the bytes that each of several threads has taken for certain.

    Args:
        taken: by the whole process.
        faults: bytes of the pages that each has touched first, beyond what it touches without taking any.
        all_faults: of all threads, with that.
        page: bytes of a page.
    """
    if all_faults < 0.9 * taken:  # there were large pages among them
        faults = {name: number * (_LARGE // page) for name, number in faults.items()}
    total = sum(faults.values())
    return {name: max(0, min(number, taken - (total - number))) for name, number in faults.items()}


class Threads:
    """The threads of this process in which tasks run."""

    def __init__(self) -> None:
        self._are_greenlets = real_thread_starter() is not None
        self._total = 0
        #: By the kernel's number of each thread; None: not all are known.
        self._before: dict[int, int] | None = None
        #: What each start touches while its process takes nothing; the empty word: all others.
        self._usual: dict[str, int] = {}

    def of(self, tokens: Collection[str]) -> dict[str, int]:
        """Return the thread of each start, as ``threading.get_ident`` names it; {} for greenlets."""
        if self._are_greenlets:
            return {}
        return {token: thread for token, thread in child.threads().items() if token in tokens}

    def credits(self, tokens: Collection[str], taken: int) -> dict[str, int]:
        """Return the bytes that each start has taken for certain since the last call.

        Args:
            tokens: of all starts; what is none stands for a task that is not guarded.
            taken: by the whole process, since then.
        """
        if self._are_greenlets:
            return dict.fromkeys(tokens, max(0, taken)) if len(tokens) == 1 else {}
        before, total_before = self._before, self._total
        every = {each.ident: each.native_id for each in threading.enumerate() if each.native_id}
        if len(every) > FEW and taken <= 0:
            self._before = None
            return {}
        self._total = procfs.faults()
        self._before = now = {native: procfs.faults(native) for native in every.values()}
        if before is None:
            return {}
        threads = {token: every.get(thread) for token, thread in self.of(tokens).items()}
        # A run that was not there before has begun since.
        grown = {token: now[id] - before.get(id, 0) for token, id in threads.items() if id is not None}
        grown[""] = max(0, self._total - total_before - sum(grown.values()))
        return self._beyond_usual(taken, grown)

    def _beyond_usual(self, taken: int, faults: Mapping[str, int]) -> dict[str, int]:
        """Return what was taken by whom. What is taken and given back all the time touches pages, too."""
        usual = {name: self._usual.get(name, 0) for name in faults}
        if taken <= CALM:
            usual = {name: max(faults[name], 9 * before // 10) for name, before in usual.items()}
        self._usual = usual
        more = {name: max(0, number - usual[name]) for name, number in faults.items()}
        return credited(max(0, taken), more, sum(faults.values()), procfs.PAGE)
