"""Looks at the memory of what is busy in a worker, five times a second, and tells the ledger while it grows.

It works in the worker's heartbeat thread, which never waits: a look reads a small file for each busy process.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from celery.worker.state import active_requests

from celery_poison.basics import procfs
from celery_poison.basics.forking import unpatched
from celery_poison.basics.procfs import MemoryGroup
from celery_poison.causes import MOST_NUMBERS, is_users
from celery_poison.extensions.black_box.memory_record import MOST, NOTABLE, WORTH, Growth, MemoryRow
from celery_poison.extensions.black_box.shared import Threads
from celery_poison.ledger.writer import command
from celery_poison.worker.crash_reports import where_is
from celery_poison.worker.inflight import unchanged
from celery_poison.worker.pool_processes import Exits
from celery_poison.worker.site import Site

#: Seconds between two looks; that ``MemoryRow.lately`` covers; for which growth is told after its end;
#: and for which it is known after the end of its task, which may have been its death.
PAUSE, LATELY, HOLD, KEPT = 0.2, 5.0, 10.0, 3.0
#: Seconds over which speed is reckoned: the fastest counts.
SPANS = (2 * PAUSE, 1.0, LATELY)
#: Seconds between two looks at all of the memory, which may cost the kernel much, where nothing grows fast.
RARELY = 0.5
#: The kernel gives no greater number to a process.
MOST_PROCESSES = 1 << 22
#: Processes that are looked at between two tasks, so that it is known what they held when the next began.
MOST_IDLE = 16
#: KiB within a second by which memory grows fast.
FAST = 16 << 10
#: Share of the memory that is left where little is left.
LITTLE = 0.15
#: Messages to the ledger in a second at most; and seconds for which it keeps them.
OFTEN, REMEMBERED = 2, 86_400


@dataclass(slots=True, eq=False)
class Track:
    """The memory of one task, or of a process that tasks share, since it began; in KiB.

    Attributes:
        pid: of its process.
        kb: private memory of its process, and ``own``: what counts as taken by this task.
        at: where its code was.
        asked: from where in the file of its process the answer to that will stand.
    """

    token: str
    task: str
    pid: int
    kb: int = 0
    own: int = 0
    at: str = ""
    asked: int | None = None
    _looks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=int(LATELY / PAUSE) + 2))
    _first: int | None = None
    _curve: list[tuple[float, int]] = field(default_factory=list)
    _apart: float = PAUSE

    def add(self, now: float, own: int) -> None:
        self.own = own
        self._first = own if self._first is None else min(self._first, own)
        self._looks.append((now, own))
        if not self._curve or now - self._curve[-1][0] >= self._apart - PAUSE / 2:
            self._curve.append((now, own))
        if len(self._curve) > MOST_NUMBERS:  # half as many, twice as far apart
            del self._curve[1::2]
            self._apart *= 2

    def curve(self) -> tuple[list[int], float]:
        """Return its memory at equal distances of time since it began, in KiB, and over how many seconds."""
        if not self._looks:
            return [], 0.0
        last = [] if self._curve[-1] == self._looks[-1] else [self._looks[-1]]
        points = [*self._curve, *last][-MOST_NUMBERS:]
        return [kb for _, kb in points], points[-1][0] - points[0][0]

    @property
    def is_new(self) -> bool:
        return self._first is None

    @property
    def grown(self) -> int:
        return self.own - (self._first or 0)

    def within(self, seconds: float) -> tuple[int, float]:
        """Return by how much it grew in the last seconds, and since when that is."""
        if not self._looks:  # it ended before the first
            return 0, 0.0
        now, own = self._looks[-1]
        since, least = next((at, kb) for at, kb in self._looks if at >= now - seconds - PAUSE / 2)
        return own - least, now - since

    def row(self) -> MemoryRow:
        lately, _ = self.within(LATELY)
        rates = (grown / seconds for grown, seconds in map(self.within, SPANS) if seconds)
        speed = int(max(rates, default=0.0)) if lately >= NOTABLE else 0
        return MemoryRow(self.token, self.task, self.kb, self.grown, max(0, lately), speed, self.at)


class Sampler:
    """The black box of one worker.

    Attributes:
        growth: what it knows of memory that grows, or grew a moment ago, before the last death perhaps; None
            for none.
    """

    def __init__(self, site: Site, exits: Exits) -> None:
        self.site = site
        self.growth: Growth | None = None
        self._exits = exits
        self._me = os.getpid()
        self._tracks: dict[str, Track] = {}
        self._process = Track("", "", self._me)
        self._is_shared = False
        #: Memory of processes that were busy before, in KiB; 0: they are.
        self._idle: dict[int, int] = {}
        self._threads, self._group = Threads(), MemoryGroup()
        self._main = unpatched("_thread", "get_ident")()
        self._fast_until = self._known_until = 0.0
        self._memory, self._memory_at = (0, 0), 0.0
        self._told: deque[float] = deque(maxlen=OFTEN)
        self._told_of: object = None

    def look(self, send: Callable[[bytes], bool]) -> float:
        """Look once; tell by ``send``. Return the seconds until the next look."""
        now = time.monotonic()
        busy = self._follow()
        shared = [track for track in busy if track.pid == self._me]
        self._is_shared = self._is_shared or bool(shared)
        if self._is_shared:
            self._look_at_my_own(now, shared)
        self._look_at_others(now, [track for track in busy if track.pid != self._me])
        self._hear(busy)
        growth = self._growth(now, busy)
        if growth is not None:
            self._ask(busy)
            self.growth, self._known_until = growth, now + KEPT
        elif now > self._known_until:
            self.growth = None
        self._tell(now, send)
        return PAUSE

    def _follow(self) -> list[Track]:
        """Return the tracks of what runs now, each of one start."""
        before, self._tracks = self._tracks, dict[str, Track]()
        for request in unchanged(lambda: tuple(active_requests)):
            pid = request.worker_pid
            if pid and pid > MOST_PROCESSES:  # a greenlet's, which pools give in place of it
                pid = self._me
            if pid and request.hostname == self.site.me.node:
                token = getattr(request, "poison_token", "")
                name = token or f"#{request.id}"
                self._tracks[name] = before.get(name) or Track(token, request.name, pid)
        return [*self._tracks.values()]

    def _look_at_others(self, now: float, others: Sequence[Track]) -> None:
        for track in others:
            if track.is_new and (kb := self._idle.get(track.pid)):
                track.add(now - PAUSE, kb)
            if (
                kb := procfs.private(track.pid) // 1024
            ):  # else it has ended, and its worker has not noticed yet
                track.kb = kb
                track.add(now, kb)
        busy = {track.pid: 0 for track in others}
        known = [pid for pid in self._idle if pid not in busy][-MOST_IDLE:]
        idle = ((pid, procfs.private(pid) // 1024) for pid in known)
        self._idle = {**{pid: kb for pid, kb in idle if kb}, **busy}

    def _look_at_my_own(self, now: float, shared: Sequence[Track]) -> None:
        kb = procfs.private() // 1024
        taken = kb - self._process.kb if self._process.kb else 0
        if not shared:  # what came before is none of the next ones' business
            self._process = Track("", "", self._me)
        self._process.kb = kb
        self._process.add(now, kb)
        names = [track.token or f"#{track.task}" for track in shared]
        credits = self._threads.credits(names, taken * 1024)
        for name, track in zip(names, shared, strict=True):
            track.kb = kb
            if track.is_new:
                track.add(now - PAUSE, 0)
            # No task is known to have given it back: none is held to have kept it.
            track.add(now, max(0, track.own + min(0, taken) + credits.get(name, 0) // 1024))

    # --- what grows ------------------------------------------------------------------------------

    def _growth(self, now: float, busy: Sequence[Track]) -> Growth | None:
        """Return the news for the ledger: memory grows fast, or did just now, or little of it is left."""
        seen = [track for track in busy if track.grown >= NOTABLE]
        is_shared = any(track.pid == self._me for track in busy)
        every = [*seen, self._process] if is_shared and self._process.grown >= NOTABLE else seen
        if not every:
            return None
        if any(track.within(1.0)[0] >= FAST for track in every):
            self._fast_until = now + HOLD
        is_notable = any(track.grown >= WORTH for track in every)
        if now >= self._fast_until and not is_notable:
            return None
        used, limit = self._all_memory(now)
        if now >= self._fast_until and limit - used > LITTLE * limit:
            return None
        known = sorted(((track.row(), track) for track in seen), key=lambda each: -each[0].grown)[:MOST]
        process = self._process.row() if is_shared else None
        growth = Growth(
            rows=[row for row, _ in known], process=process, busy=len(busy), used=used, limit=limit
        )
        if (named := growth.named) is None:
            return growth
        track = next((track for row, track in known if row is named), self._process)
        curve, seconds = track.curve()
        return replace(growth, curve=curve, seconds=seconds)

    def _all_memory(self, now: float) -> tuple[int, int]:
        """Return the memory in use and its limit, in KiB."""
        if now - self._memory_at >= (PAUSE / 2 if now < self._fast_until else RARELY):
            self._memory_at = now
            used, limit = self._group.used() // 1024, self._group.allowed() // 1024
            if used > 0 and limit > 0:  # else there was no memory left to open a file
                self._memory = used, limit
        return self._memory

    # --- where its code is -----------------------------------------------------------------------

    def _ask(self, busy: Sequence[Track]) -> None:
        """Find out where the code is of what grows at this moment."""
        growing = [track for track in busy if track.within(1.0)[0] >= NOTABLE // 4]
        mine = self._threads.of([track.token for track in growing if track.pid == self._me])
        for track in growing:
            if track.token in mine:
                track.at = _place(where_is(mine[track.token])) or track.at
            elif track.pid != self._me:
                track.asked = self._ask_process(track.pid, has_not_answered=track.asked is not None)
        if self._process.kb and not mine and self._process.within(1.0)[0] >= NOTABLE // 4:
            self._process.at = next(filter(is_users, where_is(self._main)), self._process.at)

    def _ask_process(self, pid: int, *, has_not_answered: bool) -> int | None:
        """Ask a process by its own thread; by a signal only if that cannot run while the task computes.

        A signal would interrupt what waits, and not every library can bear that.
        """
        if not has_not_answered:
            return self._exits.wake(pid)
        found = procfs.process(pid)
        return self._exits.ask(pid) if found is not None and found.state == "R" else None

    def _hear(self, busy: Sequence[Track]) -> None:
        for track in busy:
            if track.asked is not None and (place := _place(self._exits.answer(track.pid, track.asked))):
                track.at, track.asked = place, None

    # --- telling ---------------------------------------------------------------------------------

    def _tell(self, now: float, send: Callable[[bytes], bool]) -> None:
        worker, growth = self.site.me.worker, self.growth
        key = self.site.ledger.keys.of("growth", worker).encode()
        if growth is None:
            if self._told_of is not None:
                self._told_of = None
                send(command(b"DEL", key))
            return
        rows = [*growth.rows, *([growth.process] if growth.process else [])]
        news = worker, [(row.token, row.grown // NOTABLE, row.speed < FAST, row.at) for row in rows]
        if news == self._told_of or (len(self._told) == OFTEN and now - self._told[0] < 1.0):
            return
        self._told.append(now)
        if send(command(b"SET", key, growth.encode().encode(), b"EX", b"%d" % REMEMBERED)):
            self._told_of = news


def _place(stack: Sequence[str]) -> str:
    """Return the innermost call of the user's own code."""
    return next(filter(is_users, stack), stack[0] if stack else "")
