"""What the marks of a fleet tell: who ran which message when, and what of it must not be."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import redis
from failover_app import MARKS

FOREVER = float("inf")
#: Seconds between a task's last mark and the moment when its end is on record: a process that dies in them
#: has finished for us and not for the plugin.
LAST_WORDS = 0.1


@dataclass
class Run:
    """One run of one message; times in seconds since 1970."""

    message: str
    life: str
    start: float
    end: float | None = None
    last: float = 0.0  #: its newest mark


@dataclass
class Life:
    """One life of one worker, as its tormentor recorded it."""

    worker: str
    killed: float = FOREVER
    pauses: list[tuple[float, float]] = field(default_factory=list)

    def cut(self, run: Run) -> float:
        """Return when ``run`` was first cut off, by a kill or a freeze; never is FOREVER."""
        end = FOREVER if run.end is None else run.end
        times = [self.killed, *(begin for begin, _ in self.pauses)]
        return min((time for time in times if run.start <= time <= end + LAST_WORDS), default=FOREVER)

    def awake(self, run: Run) -> list[tuple[float, float]]:
        """Return the spans in which ``run`` really ran."""
        spans, begin = [], run.start
        end = min(run.last if run.end is None else run.end, self.killed)
        for paused, resumed in self.pauses:
            if begin < paused < end:
                spans.append((begin, paused))
                begin = resumed
        return [*spans, (begin, end)]


class Chronicle:
    """Reads the marks, as far as they have come."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url)
        self._read = 0
        self._runs: dict[str, Run] = {}
        self.lives: dict[str, Life] = {}
        self.of_message: dict[str, list[Run]] = defaultdict(list)
        self.received: dict[str, dict[str, float]] = defaultdict(dict)  #: life -> message -> when last

    def update(self) -> None:
        """Read what is new."""
        rows = self._redis.lrange(MARKS, self._read, -1)
        self._read += len(rows)
        for row in rows:
            self._take(*json.loads(row))

    def _take(self, event: str, message: str, life: str, run: str, at: float) -> None:
        if event == "received":
            self.received[life][message] = at
        elif event == "start":
            found = self._runs[run] = Run(message, life, at, last=at)
            self.of_message[message].append(found)
        else:
            self._runs[run].last = at
            if event == "end":
                self._runs[run].end = at

    # -- about one message

    def is_done(self, message: str) -> bool:
        return any(run.end is not None for run in self.of_message[message])

    def next_start(self, message: str, life: str, since: float) -> float | None:
        """Return when it was first started after ``since`` by anybody but ``life``."""
        starts = (run.start for run in self.of_message[message] if run.life != life and run.start > since)
        return min(starts, default=None)

    def held_by(self, life: str, at: float) -> tuple[list[str], list[str]]:
        """Return what ``life`` was running at a moment, and what it had only received."""
        running, prefetched = [], []
        for message, received in self.received[life].items():
            mine = [run for run in self.of_message[message] if run.life == life and run.start <= at]
            if any(run.end is None or run.end > at for run in mine):
                running.append(message)
            elif received <= at and not any(run.start >= received for run in mine):
                prefetched.append(message)
        return running, prefetched

    # -- what must not be

    def unexplained(self) -> dict[str, float | None]:
        """Return messages that were started again although no run before was cut off.

        With each the seconds by which its run had ended before its worker was killed; None: it was not.
        """
        found: dict[str, float | None] = {}
        for message, runs in self.of_message.items():
            for before, after in pairwise(sorted(runs, key=lambda run: run.start)):
                life = self.lives[before.life]
                if life.cut(before) > after.start:
                    found[message] = life.killed - (before.end or 0.0) if life.killed < after.start else None
        return found

    def twice_at_once(self) -> dict[str, float]:
        """Return messages that ran twice at one time, with the seconds in which they did."""
        found = {}
        for message, runs in self.of_message.items():
            shared = sum(self._shared(one, other) for one, other in combinations(runs, 2))
            if shared > 0:
                found[message] = shared
        return found

    def _shared(self, one: Run, other: Run) -> float:
        return sum(
            max(0.0, min(mine[1], yours[1]) - max(mine[0], yours[0]))
            for mine in self.lives[one.life].awake(one)
            for yours in self.lives[other.life].awake(other)
        )

    def stale_work(self, life: str, paused: float, resumed: float) -> list[Run]:
        """Return the runs of a revived worker, begun before or after, of messages that others had by then."""
        return [
            run
            for runs in self.of_message.values()
            for run in runs
            if run.life == life
            and run.last > resumed
            and any(other.life != life and paused < other.start < run.last for other in runs)
        ]
