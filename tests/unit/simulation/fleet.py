"""Plays a script to a simulated fleet under one rule: no processes, no Redis, only who ran beside whom.

Simulated are pool slots, prefetching, cells, the wait for an idle worker, restarts, and the time until the
dead worker's messages are back. The verdict is the plugin's own (``blame_rules``).
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from celery_poison.decide import Action, DeadStart, StartEnd, end_of
from celery_poison.model import IN_CELL, Start
from celery_poison.rules.doubts import LATELY, Blow, needs_idle_worker
from tests.unit.simulation.figures import Fortune
from tests.unit.simulation.rules import Past, Rule, died, doubt
from tests.unit.simulation.script import DEADLINESS, Deploy, Event, Kill, Send, World

#: Celery's prefetch multiplier.
PREFETCH = 4
#: Seconds after which a suspect that waits for a cell is parked, so that any worker may try it.
PARKED = 2.0
#: Of whatever is tried in a cell.
TRIAL = Start.of("", "", "", "", alone=IN_CELL, deliveries=2)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the machinery is, in seconds; the defaults are what was seen of real workers."""

    notice: float = 1.4  #: from a death until its messages are back
    restart: float = 1.2  #: from a death until the next life consumes
    cell: float = 0.04  #: until a suspect begins in its cell
    moment: float = 0.02  #: from the death of a cell until its worker believes that the suspect did it


@dataclass(eq=False, slots=True)
class Message:
    id: str
    fortune: Fortune
    past: Past = field(default_factory=Past)
    runs: int = 0


@dataclass(eq=False, slots=True)
class Worker:
    """One worker through all its lives."""

    number: int
    up: bool = True
    life: int = 0
    leaving: bool = False
    running: dict[Message, float] = field(default_factory=dict)
    received: deque[Message] = field(default_factory=deque)
    suspects: deque[Message] = field(default_factory=deque)
    trials: dict[Message, float] = field(default_factory=dict)
    alone: bool = False  #: nothing else runs while this trial goes on
    held: bool = False  #: no other trial begins, because one waits to be alone
    served: int = 0  #: when it was given something last, in turns


class Simulation:
    """One fleet under one rule."""

    def __init__(self, world: World, rule: Rule, seed: int, pace: Pace | None = None) -> None:
        self._world, self._rule, self._pace = world, rule, pace or Pace()
        self._seed = seed
        self._workers = [Worker(number) for number in range(world.workers)]
        self._queue: deque[Message] = deque()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._turns = itertools.count(1)
        self.now = 0.0
        self.deaths = 0
        self._died_at: deque[float] = deque()  #: in the last hour
        self.bystanders = 0  #: innocents that were running in those deaths, all together
        self.trials = 0
        self.fortunes: dict[str, Fortune] = {}
        self._open = 0

    def play(self, events: Iterable[Event], patience: float = 600.0) -> None:
        """Play all ``events``, and go on until every message has ended, or for so long."""
        for event in events:
            self._advance(event.at)
            match event:
                case Send():
                    self._send(event)
                case Kill():
                    worker = self._workers[event.worker]
                    if worker.up:
                        self._die(worker)
                case Deploy():
                    for worker in self._workers:
                        self._later(worker.number * self._pace.restart, partial(self._leave, worker))
        deadline = self.now + patience
        while self._open and self._due and self._due[0][0] <= deadline:
            self._step()

    # --- time ----------------------------------------------------------------------------------

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), what))

    def _advance(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self._step()
        self.now = until

    def _step(self) -> None:
        self.now, _, what = heapq.heappop(self._due)
        what()

    # --- messages ------------------------------------------------------------------------------

    def _send(self, event: Send) -> None:
        fortune = self.fortunes[event.id] = Fortune(event.kind, event.seconds)
        self._open += 1
        self._queue.append(Message(event.id, fortune))
        self._distribute()

    def _distribute(self) -> None:
        while self._queue:
            hungry = [
                worker
                for worker in self._workers
                if worker.up and not worker.leaving and self._credit(worker) > 0
            ]
            if not hungry:
                return
            # A broker serves its consumers in turn.
            worker = min(hungry, key=lambda worker: worker.served)
            worker.served = next(self._turns)
            worker.received.append(self._queue.popleft())
            self._work(worker)

    def _credit(self, worker: Worker) -> int:
        # Suspects that wait take none.
        return PREFETCH * self._world.slots - len(worker.running) - len(worker.received)

    def _work(self, worker: Worker) -> None:
        """Let a worker begin what it can, in the order of arrival."""
        worker.held = False
        while worker.received and not worker.alone:
            message = worker.received[0]
            match self._rule.admit(message.past):
                case Action.QUARANTINE:
                    worker.received.popleft()
                    self._convict(message)
                case Action.RUN_ALONE if not needs_idle_worker(message.past.history):
                    self._wait(worker, worker.received.popleft())
                case Action.RUN_ALONE:
                    worker.held = bool(worker.running or worker.trials)
                    if worker.held:
                        break  # the others behind it wait too
                    worker.alone = True
                    worker.suspects.appendleft(worker.received.popleft())
                case _:
                    if len(worker.running) == self._world.slots:
                        break
                    self._begin(worker, worker.received.popleft())
            self._try_next(worker)
        self._try_next(worker)

    def _begin(self, worker: Worker, message: Message) -> None:
        worker.running[message] = self.now
        life, (kills, after) = worker.life, self._fate(message)
        self._later(after, lambda: self._end(worker, life, message, kills=kills))

    def _fate(self, message: Message) -> tuple[bool, float]:
        """Return whether this run kills, and after how long it ends; the same under every rule."""
        message.runs += 1
        fortune = message.fortune
        if not DEADLINESS[fortune.kind]:
            return False, fortune.seconds
        dice = random.Random(f"{self._seed}/{message.id}/{message.runs}")
        kills = dice.random() < DEADLINESS[fortune.kind]
        return kills, fortune.seconds * (dice.random() if kills else 1.0)

    def _end(self, worker: Worker, life: int, message: Message, *, kills: bool) -> None:
        if worker.life != life:
            return
        if kills:
            message.fortune.kills += 1
            message.fortune.workers_killed += 1
            self._die(worker)
            return
        del worker.running[message]
        self._finish(message)
        self._go_on(worker)

    def _finish(self, message: Message) -> None:
        message.fortune.done = self.now
        self._open -= 1

    def _convict(self, message: Message) -> None:
        message.fortune.convicted = True
        self._open -= 1

    def _go_on(self, worker: Worker) -> None:
        if worker.leaving:
            if not worker.running and not worker.trials:
                self._restart(worker)
            return
        self._work(worker)
        self._distribute()

    # --- trials --------------------------------------------------------------------------------

    def _wait(self, worker: Worker, message: Message) -> None:
        worker.suspects.append(message)
        life = worker.life
        self._later(PARKED, lambda: self._park(worker, life, message))

    def _park(self, worker: Worker, life: int, message: Message) -> None:
        if worker.life == life and message in worker.suspects:
            worker.suspects.remove(message)
            self._queue.append(message)
            self._distribute()

    def _try_next(self, worker: Worker) -> None:
        while worker.suspects and not (worker.held or worker.leaving):
            if len(worker.trials) == (1 if worker.alone else self._world.slots):
                return
            message = worker.suspects.popleft()
            self.trials += 1
            worker.trials[message] = self.now + self._pace.cell
            life, (kills, after) = worker.life, self._fate(message)
            self._later(self._pace.cell + after, partial(self._end_trial, worker, life, message, kills=kills))

    def _end_trial(self, worker: Worker, life: int, message: Message, *, kills: bool) -> None:
        if worker.life != life:
            return
        if kills:
            message.fortune.lost_s += self.now - worker.trials[message]
            message.fortune.deaths += 1
            message.fortune.kills += 1
            self._later(self._pace.moment, lambda: self._prove(worker, life, message))
            return
        del worker.trials[message]
        worker.alone = False
        self._finish(message)
        self._try_next(worker)
        self._go_on(worker)

    def _prove(self, worker: Worker, life: int, message: Message) -> None:
        if worker.life != life:
            return  # it has died in that moment, and nobody is left to tell
        del worker.trials[message]
        worker.alone = False
        died(message.past, alone=True)
        self._return([message])
        self._try_next(worker)
        self._go_on(worker)

    # --- the ends of workers -------------------------------------------------------------------

    def _die(self, worker: Worker) -> None:
        self.deaths += 1
        self._died_at.append(self.now)
        while self._died_at[0] < self.now - max(LATELY):
            self._died_at.popleft()
        held = [*worker.running, *worker.suspects, *worker.received, *worker.trials]
        for message, began in worker.running.items():
            self._was_running(message, began)
            died(message.past, alone=False)
        self.bystanders += sum(message.fortune.kind == "innocent" for message in worker.running)
        for message, began in worker.trials.items():
            self._doubt(worker, message, began)
        self._later(self._pace.notice, lambda: self._return(held))
        self._restart(worker)

    def _doubt(self, worker: Worker, message: Message, began: float) -> None:
        ran = max(0.0, self.now - began)
        if ran:
            self._was_running(message, began)
        blow = Blow(
            together=len(worker.running) + len(worker.trials),
            ran_s=ran,
            starts=message.runs,
            deaths=[sum(at > self.now - seconds for at in self._died_at) for seconds in LATELY],
            workers=sum(other.up for other in self._workers if other is not worker),
        )
        end = end_of(DeadStart(TRIAL, history=message.past.history, blow=blow))
        if end.end is StartEnd.STRIKE:
            died(message.past, alone=True)
        else:
            doubt(message.past, end)

    def _was_running(self, message: Message, began: float) -> None:
        fortune = message.fortune
        fortune.deaths += 1
        fortune.worker_deaths += 1
        fortune.lost_s += self.now - began
        if fortune.first_death is None:
            fortune.first_death = self.now

    def _restart(self, worker: Worker) -> None:
        worker.life += 1
        worker.up, worker.leaving = False, False
        worker.running.clear()
        worker.received.clear()
        worker.suspects.clear()
        worker.trials.clear()
        worker.alone, worker.held = False, False
        self._later(self._pace.restart, lambda: self._come_up(worker))

    def _come_up(self, worker: Worker) -> None:
        worker.up = True
        self._distribute()

    def _leave(self, worker: Worker) -> None:
        """A warm shutdown: what runs may end, the rest goes back."""
        if not worker.up or worker.leaving:
            return
        worker.leaving = True
        held = [*worker.suspects, *worker.received]
        worker.suspects.clear()
        worker.received.clear()
        self._return(held)
        if not worker.running and not worker.trials:
            self._restart(worker)

    def _return(self, messages: list[Message]) -> None:
        for message in messages:
            message.past.returns += 1
        self._queue.extendleft(reversed(messages))
        self._distribute()
