"""Kills or freezes one worker of a fleet after the other, and asks what became of all it held."""

from __future__ import annotations

import argparse
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from chronicle import Run
from failover_fleet import Fleet

from celery_poison.testing import wait_until

T = TypeVar("T")

#: Messages for each worker that are sent just before a kill, so that it has some prefetched.
BURST = 10
#: Longest time in seconds from there to the blow: the burst is not worked off yet.
SOON = 0.3


class Blow(NamedTuple):
    """One kill or freeze; every time in seconds, None where it did not come to that."""

    life: str
    victim: float | None
    beside: list[float]
    prefetched: list[float]
    noticed: float | None
    put_back: float | None
    went_on: int
    began: int
    overlap: float


class Torment:
    """Kills or freezes one worker after the other."""

    def __init__(self, fleet: Fleet, args: argparse.Namespace) -> None:
        self._fleet, self._args = fleet, args
        self._chronicle = fleet.chronicle
        self._dice = random.Random(args.seed)
        self._revived: dict[str, float] = {}

    def blow(self, number: int) -> Blow:
        """Strike the worker that runs the next victim, and see what becomes of all it held."""
        self._wait(lambda: self._fleet.is_whole(self._revived), "the fleet is whole")
        time.sleep(self._args.settle)
        victim, life = self._begin(number)
        struck = time.time()
        self._fleet.signal_all(life, signal.SIGKILL if self._args.mode == "kill" else signal.SIGSTOP)
        over = time.time()
        try:
            again = self._await_next_start(victim, life, struck)
            running, prefetched = self._chronicle.held_by(life, struck)
        finally:
            self._note(life, struck, over)
        held = [victim, *running, *prefetched]
        self._await_ends(held)
        if self._args.mode == "freeze":
            self._wait(lambda: self._fleet.is_whole(self._revived), "the fleet is whole again")
        return self._told(life, struck, again, [name for name in running if name != victim], prefetched)

    def _begin(self, number: int) -> tuple[str, str]:
        """Send a victim, and the burst behind it; return it and the life that runs it."""
        victim = f"v{number}"
        while self._send(victim):  # this process has slept too long: there is nothing to strike
            victim += "'"
        return victim, self._runs(victim)[-1].life

    def _send(self, victim: str) -> bool:
        """Send both; return whether the victim has ended meanwhile."""
        self._fleet.send("victim", victim, self._args.victim_seconds)
        self._wait(lambda: self._runs(victim), "the victim starts")
        for place in range(BURST * self._args.workers):
            self._fleet.send_healthy(self._dice, f"b{victim}.{place}")
        time.sleep(self._dice.uniform(0.0, SOON))
        self._chronicle.update()
        return self._chronicle.is_done(victim)

    def _runs(self, message: str) -> list[Run]:
        self._chronicle.update()
        return self._chronicle.of_message[message]

    def _await_next_start(self, victim: str, life: str, struck: float) -> float | None:
        def started() -> float | None:
            self._chronicle.update()
            return self._chronicle.next_start(victim, life, struck)

        try:
            again = self._wait(started, "the victim starts again")
        except AssertionError:
            return None
        return again - struck if again else None

    def _await_ends(self, names: list[str]) -> None:
        """Wait until nobody asks for them any more; what is lost is counted in the end."""

        def ended() -> bool:
            self._chronicle.update()
            open_ = {name for name in names if not self._chronicle.is_done(name)}
            return not open_ or open_ <= set(self._fleet.convicted())

        with suppress(AssertionError):
            self._wait(ended, "all it held is done")

    def _note(self, life: str, struck: float, over: float) -> None:
        """Enter the blow into the chronicle; who is only frozen is revived."""
        if self._args.mode == "kill":
            self._chronicle.lives[life].killed = over
            return
        self._revived[life] = time.time()
        self._fleet.signal_all(life, signal.SIGCONT)
        self._chronicle.lives[life].pauses.append((over, self._revived[life]))

    def _told(
        self, life: str, struck: float, again: float | None, beside: list[str], prefetched: list[str]
    ) -> Blow:
        starts = {name: self._chronicle.next_start(name, life, struck) for name in (*beside, *prefetched)}
        incident = self._fleet.incident(life.partition("/")[0], struck)
        stale: list[Run] = []
        resumed = overlap = 0.0
        if self._args.mode == "freeze":
            paused, resumed = self._chronicle.lives[life].pauses[-1]
            stale = self._chronicle.stale_work(life, paused, resumed)
            overlap = max((run.last - resumed for run in stale), default=0.0)
        return Blow(
            life,
            again,
            [at - struck for name in beside if (at := starts[name])],
            [at - struck for name in prefetched if (at := starts[name])],
            incident.noticed_at - struck if incident and incident.noticed_at else None,
            incident.finished_at - struck if incident and incident.finished_at else None,
            sum(run.start <= resumed for run in stale),
            sum(run.start > resumed for run in stale),
            overlap,
        )

    def _wait(self, predicate: Callable[[], T], what: str) -> T:
        return wait_until(predicate, self._args.patience, what=what, interval=0.01)
