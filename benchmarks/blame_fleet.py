"""Plays a script to real workers on a private Redis, and tells what became of every message."""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple, Self

import blame_app
import redis
from blame_figures import Fortune
from blame_rules import Past
from blame_script import DEADLINESS, Deploy, Event, Kill, Send, World

from celery_poison.basics import procfs
from celery_poison.model import MessageRecord
from celery_poison.plugin import plugin_of
from celery_poison.states import State
from celery_poison.testing import RedisServer, Supervisor, Worker, wait_until

HERE = Path(__file__).resolve().parent
#: In the environment of every process that is started here, and so in that of its descendants.
TAG = "BLAME_TAG"
#: Messages that may be open before the script waits: the machine is slower than it.
BACKLOG = 150
#: A run whose end is marked so shortly before the kill may not have ended for its ledger: nobody's mistake.
LAST_WORDS = 0.1
NEVER = float("inf")


@dataclass
class Run:
    """One run of one message; times in seconds since 1970."""

    message: str
    life: str
    start: float
    on_trial: bool
    end: float | None = None
    kill: float | None = None


@dataclass
class Told:
    """What a real run came to."""

    fortunes: dict[str, Fortune]
    pasts: dict[str, Past]
    deaths: int = 0
    bystanders: int = 0
    trials: int = 0
    seconds: float = 0.0
    late: float = 0.0
    late_poisons: dict[str, list[str]] = field(default_factory=dict)
    notice: float = 0.0
    restart: float = 0.0
    left_behind: int = 0
    complaints: list[str] = field(default_factory=list)


class Blow(NamedTuple):
    life: str
    at: float


class Fleet:
    """Starts everything on entering, and leaves no process behind.

    Args:
        pools: of the workers, in turn.
        count: bound of the counting rule that the plugin follows; 0: ours.
    """

    def __init__(self, world: World, pools: list[str], count: int = 0, log: Path | None = None) -> None:
        self._world, self._pools, self._count, self._log = world, pools, count, log
        self._tag = secrets.token_hex(8)
        self._lives: dict[str, Worker] = {}
        self._blows: list[Blow] = []
        self._sent: dict[str, Send] = {}
        self._sent_at: dict[str, float] = {}
        self._done: set[str] = set()
        self._seen: set[str] = set()
        self._read = 0
        self._marks: list[list[object]] = []
        self._late = 0.0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        enter = self._stack.enter_context
        ledger, notes = enter(RedisServer()), enter(RedisServer())
        self._env = {
            "BLAME_BROKER": ledger.url(0),
            "BLAME_LEDGER": ledger.url(1),
            "BLAME_MARKS": notes.url(),
            "BLAME_COUNT": str(self._count or ""),
            TAG: self._tag,
        }
        self._app = blame_app.build(self._env)
        self._stack.callback(self._app.close)
        self._notes = redis.Redis.from_url(notes.url())
        self._queries = plugin_of(self._app).open_ledger().read
        self._left_behind = 0
        self._stack.callback(self._sweep)
        self._supervisor = enter(Supervisor(self._make, self._world.workers, give_up_after=1_000_000))
        wait_until(lambda: len(self._queries.leases()) >= self._world.workers, 180, what="workers")
        time.sleep(10)  # its monitors listen before they believe in any death

    def _make(self, name: str) -> Worker:
        life = f"{name}/{len(self._lives) + 1}"
        pool = self._pools[(int(name[1:]) - 1) % len(self._pools)]
        self._lives[life] = Worker(
            "blame_app",
            name=name,
            pool=pool,
            concurrency=self._world.slots,
            env={**self._env, "BLAME_LIFE": life},
            cwd=HERE,
            loglevel="WARNING",
            log_path=self._log and self._log / f"{life.replace('/', '-')}.log",
        )
        return self._lives[life]

    def _sweep(self) -> None:
        left = procfs.carrying(TAG, self._tag)
        self._left_behind = len(left)
        for pid in left:
            os.kill(pid, signal.SIGKILL)

    # --- the play --------------------------------------------------------------------------------

    def play(self, events: Iterable[Event], deaths: int, patience: float) -> Told:
        """Play ``events`` until so many workers have died, and wait until every message has ended."""
        began = time.monotonic()
        for event in events:
            self._wait_for(event.at, began)
            if self._count_deaths() >= deaths:
                break
            self._happen(event)
        played = time.monotonic() - began - self._late
        with suppress(AssertionError):  # what has not ended is counted
            wait_until(lambda: not self._open(), patience, interval=0.2)
        self._supervisor.stop(30)
        return self._told(played)

    def _wait_for(self, at: float, began: float) -> None:
        self._update()
        while (left := began + self._late + at - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))
        while len(self._sent) - len(self._done) > BACKLOG:
            time.sleep(0.2)
            self._late += 0.2
            self._update()
            self._done |= self._kept().keys()
        # After a stall of the machine the script goes on at its pace instead of making up for it.
        self._late = max(self._late, time.monotonic() - began - at - 0.5)

    def _happen(self, event: Event) -> None:
        match event:
            case Send():
                self._sent[event.id] = event
                args = (event.seconds, DEADLINESS[event.kind])
                self._sent_at[event.id] = time.time()
                self._app.tasks["blame.work"].apply_async(args, task_id=event.id)
            case Kill():
                self._kill(self._supervisor.workers[event.worker])
            case Deploy():
                threading.Thread(target=self._deploy, daemon=True).start()

    def _kill(self, worker: Worker) -> None:
        life = next(life for life, known in self._lives.items() if known is worker)
        if life not in self._seen or not worker.is_alive():
            return  # it is dead already
        self._blows.append(Blow(life, time.time()))
        worker.kill_group()
        # What it started in a session of its own is in the same container.
        for pid in procfs.carrying("BLAME_LIFE", life):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _deploy(self) -> None:
        for worker in self._supervisor.workers:
            worker.terminate()
            with suppress(AssertionError):
                wait_until(lambda: not worker.is_alive(), 60)  # noqa: B023
            time.sleep(2)

    # --- what is known so far ----------------------------------------------------------------------

    def _count_deaths(self) -> int:
        return sum(death.status < 0 for death in self._supervisor.deaths)

    def _update(self) -> None:
        rows = self._notes.lrange(blame_app.MARKS, self._read, -1)
        self._read += len(rows)
        for row in rows:
            mark = json.loads(row)
            self._marks.append(mark)
            self._seen.add(mark[2])
            if mark[0] == "end":
                self._done.add(mark[1])

    def _kept(self) -> dict[str, MessageRecord]:
        return {record.id: record for record in self._queries.kept(State.NDLV)}

    def _open(self) -> set[str]:
        self._update()
        return set(self._sent) - self._done - self._kept().keys()

    # --- what became of it -------------------------------------------------------------------------

    def _told(self, played: float) -> Told:
        self._update()
        return _Reader(self, self._marks, self._sent, self._sent_at, self._blows).read(
            self._kept(), self._count_deaths(), played, self._late
        )

    def journal_of(self, id: str) -> list[dict[str, str]]:
        return self._queries.journal(id=id, count=1_000_000)

    @property
    def left_behind(self) -> int:
        return self._left_behind


class _Reader:
    """Makes fortunes of marks."""

    def __init__(self, fleet: Fleet, marks: list[list[object]], sent: dict[str, Send],
                 sent_at: dict[str, float], blows: list[Blow]) -> None:  # fmt: skip
        self._fleet, self._sent, self._sent_at = fleet, sent, sent_at
        self._runs: dict[str, Run] = {}
        self._received: dict[str, list[float]] = defaultdict(list)
        self._first_of_life: dict[str, float] = {}
        for mark in marks:
            self._take(*mark)  # type: ignore[arg-type]
        self._dead = {blow.life: blow.at for blow in blows}
        self._cell_deaths: dict[str, list[float]] = defaultdict(list)
        self._ended: dict[str, Run] = {}
        for run in self._runs.values():
            if run.kill is not None and run.on_trial:
                self._cell_deaths[run.life].append(run.kill)
            elif run.kill is not None:
                self._dead[run.life] = min(run.kill, self._dead.get(run.life, run.kill))

    def _take(self, event: str, message: str, life: str, run: str, on_trial: bool, at: float) -> None:
        match event:
            case "received":
                self._received[message].append(at)
                self._first_of_life.setdefault(life, at)
            case "start":
                self._runs[run] = Run(message, life, at, on_trial)
            case "end":
                self._runs[run].end = at
            case "kill":
                self._runs[run].kill = at

    def read(self, kept: dict[str, MessageRecord], deaths: int, played: float, late: float) -> Told:
        told = Told({}, {}, deaths=deaths, seconds=played, late=late)
        for id, sent in self._sent.items():
            told.fortunes[id] = Fortune(sent.kind, sent.seconds, convicted=id in kept)
            told.pasts[id] = Past(returns=max(0, len(self._received[id]) - 1))
        for run in sorted(self._runs.values(), key=lambda run: run.start):
            self._enter(run, told)
        told.trials = sum(run.on_trial for run in self._runs.values())
        told.notice, told.restart = self._notice(), self._restart()
        for id, fortune in told.fortunes.items():
            told.complaints += self._complaints(id, fortune)
            if fortune.kind == "poison" and fortune.kills > 2:
                told.late_poisons[id] = self._deaths_of(id)
        return told

    def _deaths_of(self, id: str) -> list[str]:
        """Return a line for each death in which ``id`` ran: when, where, and what came of it."""
        runs = [run for run in self._runs.values() if run.message == id and run.end is None]
        runs.sort(key=lambda run: run.start)
        died = [min(self._cell_death(run), self._dead.get(run.life, NEVER)) for run in runs]
        journal = [row for row in self._fleet.journal_of(id) if row["event"] in ("crashed", "interrupted")]
        lines = []
        for run, at, following in zip(runs, died, [*died[1:], NEVER], strict=True):
            found = [row for row in journal if at <= int(row["at"].partition("-")[0]) / 1000 < following]
            came = "; ".join(f"{row['event']} {row['cause']} {row['outcome']}".rstrip() for row in found)
            lines.append(f"{at - died[0]:.3f} s: {self._place_of(run, at)}; {came or 'nothing'} on record")
        return lines

    def _place_of(self, run: Run, at: float) -> str:
        """Return where a run died, and how long its worker outlived it."""
        ended = self._dead.get(run.life, NEVER)
        killers = [other.message for other in self._runs.values() if other.kill == ended]
        by = killers[0] if killers else "outside"
        if ended == at:
            return f"{'on trial' if run.on_trial else 'in the pool'}, with {run.life}, killed by {by}"
        later = f", which {by} killed {1000 * (ended - at):.0f} ms later" if ended < NEVER else ""
        return f"alone in a cell of {run.life}{later}"

    def _enter(self, run: Run, told: Told) -> None:
        fortune = told.fortunes[run.message]
        if run.end is not None:
            if fortune.done is not None and not self._was_cut_short(self._ended[run.message]):
                told.complaints.append(f"{run.message} was done twice")
            fortune.done, self._ended[run.message] = fortune.done or run.end, run
            return
        cell = self._cell_death(run)
        died = min(cell, self._dead.get(run.life, NEVER))
        if died == NEVER:
            told.complaints.append(f"a run of {run.message} was cut off, and nobody killed {run.life}")
            return
        own = run.kill is not None
        fortune.deaths += 1
        fortune.lost_s += max(0.0, died - run.start)
        fortune.first_death = fortune.first_death or died
        # Of two poisons in one worker the first has killed it.
        fortune.kills += own and run.kill == died
        if died != cell:
            fortune.worker_deaths += 1
            fortune.workers_killed += own and run.kill == died
            told.bystanders += fortune.kind == "innocent" and not run.on_trial

    def _cell_death(self, run: Run) -> float:
        """Return when the cell of a run on trial died, with whoever was in it."""
        if not run.on_trial:
            return NEVER
        return min((at for at in self._cell_deaths[run.life] if at >= run.start), default=NEVER)

    def _was_cut_short(self, run: Run) -> bool:
        """Whether the end of a run was marked so late that nobody else may know of it."""
        return run.end is not None and run.end >= self._dead.get(run.life, NEVER) - LAST_WORDS

    def _complaints(self, id: str, fortune: Fortune) -> list[str]:
        found = []
        if fortune.convicted and fortune.kind == "innocent":
            found.append(f"{id} is innocent and was convicted")
        if fortune.kind == "poison" and not fortune.convicted:
            found.append(f"{id} is a poison and was not convicted")
        if fortune.kind == "poison" and fortune.kills > 3:
            found.append(f"{id} has killed {fortune.kills} times")
        if fortune.done is None and not fortune.convicted:
            found.append(f"{id} is lost")
        if found:
            runs = [run for run in self._runs.values() if run.message == id]
            return [
                f"{'; '.join(found)}: runs {runs}, received {self._received[id]},"
                f" journal {self._fleet.journal_of(id)}"
            ]
        return []

    def _notice(self) -> float:
        """Return the median of the seconds from a death until what ran there was received again."""
        waits = []
        for run in self._runs.values():
            if run.end is None and run.life in self._dead and not (run.kill and run.on_trial):
                again = [at for at in self._received[run.message] if at > self._dead[run.life]]
                waits += [min(again) - self._dead[run.life]] if again else []
        return median(waits) if waits else float("nan")

    def _restart(self) -> float:
        """Return the median of the seconds from a death until its worker's next life received something."""
        waits, lives = [], sorted(self._first_of_life, key=lambda life: int(life.partition("/")[2]))
        for life, died in self._dead.items():
            name, _, number = life.partition("/")
            later = [
                other
                for other in lives
                if other.startswith(f"{name}/") and int(other.partition("/")[2]) > int(number)
            ]
            waits += [self._first_of_life[later[0]] - died] if later else []
        return median(waits) if waits else float("nan")
