"""What goes wrong, and who is to blame: entry by entry, as the ledger would journal it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from examples.histories.healthy import fingerprint
from examples.histories.world import (
    BAD_HOST,
    BAD_PAYLOAD,
    BAD_RELEASE,
    BAD_SHAPE,
    BAD_TASK,
    DAY_MS,
    HOUR_MS,
    KINDS,
    POISONED,
    POISONS,
    TASKS,
    World,
)

_NUMBER = {task.name: n for n, task in enumerate(TASKS)}
_BY_TIME = [task.share * task.runtime_ms for task in TASKS]
_TASKS = [*_NUMBER]


@dataclass
class Message:
    """One message in trouble; ``deadly`` is the truth about it."""

    id: str
    task: str
    fingerprint: str
    shape: str
    payload: int
    runtime_ms: int
    deadly: bool = False
    starts: int = 0
    crashes: int = 0
    strikes: int = 0


class Troubles:
    """Writes the entries of all planted troubles; collects what was planted as ``truth``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.truth: dict[str, set[str]] = {kind: set() for kind in KINDS}
        #: Tasks with something planted in them: not guilty as a whole, but no bystanders either.
        self.tainted: set[str] = set()
        #: Ids that are convicted, by whether they deserve it.
        self.convicted: dict[str, bool] = {}
        self._dice = random.Random(f"troubles {world.seed}")
        self._entries: list[dict[str, Any]] = []

    def entries(self) -> list[dict[str, Any]]:
        """Return all entries, in no order; ``ms`` is the time of each."""
        for act in (self._poisons, self._bad_shape, self._bad_payload, self._bad_release, self._bad_task):
            act()
        self._bad_host()
        self._deploys()
        return self._entries

    # --- what is planted

    def _poisons(self) -> None:
        """Arguments that kill whoever runs them, sent again and again; half of them take the worker along."""
        for number in range(POISONS):
            task = POISONED[number % len(POISONED)]
            poison = fingerprint(_NUMBER[task], 3_000_000_000 + number)
            self._plant("fingerprint", poison, task)
            first = self._dice.random() * 0.7
            for _ in range(self._dice.randint(3, 3 + int(17 * self.world.size))):
                at = self._at(first + self._dice.random() * 0.25)
                message = self._message(task, poison, deadly=True)
                self._life(message, at, with_worker=number % 2 == 0)

    def _bad_shape(self) -> None:
        task, shape = BAD_SHAPE
        self._plant("shape", f"{task}({shape})", task)
        for at in self._moments(300):
            self._life(self._message(task, shape=shape, deadly=True), at, with_worker=False)

    def _bad_payload(self) -> None:
        """Large bodies run their worker out of memory, sometimes."""
        task, least = BAD_PAYLOAD
        self._plant("payload", f"{task} {_bucket(least)}", task)
        for at in self._moments(200):
            size = least + self._dice.randrange(50_000_000)
            deadly = self._dice.random() < 0.7
            self._life(self._message(task, payload=size, deadly=deadly), at, with_worker=True)

    def _bad_release(self) -> None:
        task, release = BAD_RELEASE[0], self.world.bad_release
        self._plant("release", self.world.releases[release], task)
        long = self.world.deploy_every_days / self.world.days
        for at in self._moments(400, release * long, min(1.0, (release + 1) * long)):
            self._life(self._message(task, deadly=self._dice.random() < 0.3), at, with_worker=False)

    def _bad_task(self) -> None:
        """A library that crashes now and then: the same message ends well the next time."""
        self._plant("task", BAD_TASK, BAD_TASK)
        for at in self._moments(900):
            self._life(self._message(BAD_TASK), at, with_worker=False)

    def _bad_host(self) -> None:
        """Bad memory: whatever runs there may be killed. Two in a row convict an innocent."""
        self.truth["host"].add(BAD_HOST)
        nodes = [n for n, node in enumerate(self.world.nodes) if node.endswith("@" + BAD_HOST)]
        for at in self._moments(250):
            node = self._dice.choice(nodes)
            message = self._bystander()
            self._crash(message, at, node, alone=True)
            if self._dice.random() < 0.05:
                self._crash(message, at + 4_000, self._dice.choice(nodes), alone=True)
                self._convict(message, at + 4_010, node)
            else:
                self._finish(message, at + 4_000, self._node())

    def _deploys(self) -> None:
        """Workers stop and start; now and then somebody is cut short, which is nobody's fault."""
        for release in range(len(self.world.releases)):
            at = self.world.start_ms + release * self.world.deploy_every_days * DAY_MS
            for node in range(len(self.world.nodes)):
                self._add(at + 20_000, "worker_started", worker=self.world.incarnation(node, release))
                if release == 0:
                    continue
                before = self.world.incarnation(node, release - 1)
                self._add(at + 10_000, "worker_stopped", worker=before)
                if self._dice.random() < 0.3:
                    message = self._bystander()
                    told = self._start(message, at + 9_000, node) | {"worker": before}
                    self._add(at + 9_000, "interrupted", state="TBDL", cause="shutdown", failures=0, **told)
                    self._finish(message, at + 60_000, node)

    # --- lives

    def _life(self, message: Message, at: int, *, with_worker: bool) -> None:
        """The first death, and what comes of it: conviction of who is deadly, an end alive of who is not."""
        node = self._node()
        if with_worker:
            self._worker_dies(message, at, node)
        else:
            self._crash(message, at, node, alone=True)
        if not message.deadly:
            self._finish(message, at + 6_000, self._node(), cleared=True)
            return
        again = at + 5_000 + message.runtime_ms
        self._crash(message, again, self._node(), alone=True)
        self._convict(message, again + 5, node)

    def _worker_dies(self, message: Message, at: int, node: int) -> None:
        incident = f"i{self._dice.getrandbits(48):012x}"
        worker = self.world.incarnation(node, self.world.release_number(at))
        beside = [self._bystander() for _ in range(self._dice.randrange(self.world.slots))]
        noticed = at + 1_000 + self._dice.randrange(400)
        self._add(noticed, "worker_lost", worker=worker, cause="worker_lost", incident=incident, note="gone")
        for number, suspect in enumerate([message, *beside]):
            self._crash(suspect, noticed + 2 + number, node, alone=not beside, incident=incident)
        slow = 1 + 5 * (at - self.world.start_ms) / DAY_MS / self.world.days
        over = noticed + int((150 + 12 * len(beside) + self._dice.randrange(200)) * slow)
        note = f"flagged {1 + len(beside)}, put back {2 + 3 * len(beside)}"
        self._add(over, "failover_finished", worker=worker, incident=incident, note=note)
        for number, suspect in enumerate(beside):
            ends = over + 2_000 * (number + 1) + suspect.runtime_ms
            self._finish(suspect, ends, self._node(), cleared=True)

    def _crash(self, message: Message, at: int, node: int, *, alone: bool, incident: str = "") -> None:
        told = self._start(message, at, node)
        message.crashes += 1
        message.strikes += 1
        cause = "worker_lost" if incident else self._dice.choice(("signal:11", "signal:9"))
        counts = {"crashes": message.crashes, "strikes": message.strikes, "failures": 0}
        blame = "exact" if alone else "shared"
        told |= {"incident": incident} if incident else {}
        self._add(at, "crashed", state="TBDL", cause=cause, outcome=blame, **counts, **told)

    def _finish(self, message: Message, at: int, node: int, *, cleared: bool = False) -> None:
        told = self._start(message, at, node)
        self._add(at, "finished", state="DLVD", outcome="success", **told)
        if cleared or message.crashes:
            named = {
                key: told[key] for key in ("id", "mid", "token", "task", "queue", "worker", "deliveries")
            }
            counts = {"crashes": message.crashes, "strikes": message.strikes, "failures": 0}
            self._add(at + 1, "cleared", state="DLVD", cause="worker_lost", **named, **counts)

    def _convict(self, message: Message, at: int, node: int) -> None:
        told = self._start(message, at, node)
        counts = {"crashes": message.crashes, "strikes": message.strikes, "failures": 0}
        named = {key: told[key] for key in ("id", "mid", "token", "task", "queue", "worker", "fingerprint")}
        note = f"killed its process by SIGKILL; death {message.crashes} of this message"
        self._add(at, "quarantined", state="NDLV", cause="signal:9", note=note, **named, **counts)
        self.convicted[message.id] = message.deadly

    def _start(self, message: Message, at: int, node: int) -> dict[str, Any]:
        message.starts += 1
        worker = self.world.incarnation(node, self.world.release_number(at))
        return {
            "id": message.id,
            "mid": message.id,
            "token": f"{worker[-8:]}.x{self._dice.getrandbits(48):012x}",
            "task": message.task,
            "queue": TASKS[_NUMBER[message.task]].queue,
            "worker": worker,
            "pid": 400 + self._dice.randrange(self.world.slots),
            "deliveries": message.starts,
            "runtime_ms": message.runtime_ms,
            "payload_bytes": message.payload,
            "memory_kb": 90_000 + message.payload // 200 + self._dice.randrange(40_000),
            "fingerprint": message.fingerprint,
            "shape": message.shape,
            "release": self.world.releases[self.world.release_number(at)],
        }

    def _message(
        self, task: str, poison: str = "", *, shape: str = "", payload: int = 0, deadly: bool = False
    ) -> Message:
        about = TASKS[_NUMBER[task]]
        kind = self._dice.randrange(about.kinds)
        return Message(
            id=f"{self._dice.getrandbits(128):032x}",
            task=task,
            fingerprint=poison or fingerprint(_NUMBER[task], kind),
            shape=shape or about.shapes[self._dice.random() < 0.1],
            payload=payload or int(about.payload * self._dice.lognormvariate(0, 0.7)) + 1,
            runtime_ms=int(about.runtime_ms * self._dice.lognormvariate(0, 0.7)) + 1,
            deadly=deadly,
        )

    def _bystander(self) -> Message:
        """Whoever happens to run: long tasks are met more often than short ones."""
        return self._message(self._dice.choices(_TASKS, _BY_TIME)[0])

    # --- small things

    def _plant(self, kind: str, key: str, task: str) -> None:
        self.truth[kind].add(key)
        self.tainted.add(task)

    def _moments(self, about: int, since: float = 0.0, until: float = 1.0) -> Iterator[int]:
        for _ in range(max(12, int(about * self.world.size))):
            yield self._at(since + self._dice.random() * (until - since))

    def _at(self, part: float) -> int:
        """Return the time at which ``part`` of the history is over, away from both of its ends."""
        length = self.world.days * DAY_MS
        return self.world.start_ms + max(HOUR_MS, min(length - HOUR_MS, int(part * length)))

    def _node(self) -> int:
        return self._dice.randrange(len(self.world.nodes))

    def _add(self, ms: int, event: str, **told: Any) -> None:
        self._entries.append({"ms": ms, "event": event, **told})


def _bucket(size: int) -> str:
    """Say it as ``celery_poison.pipeline.blame`` does: decades, in decimal units."""
    names = ("under 1 kB", "1-10 kB", "10-100 kB", "100 kB-1 MB", "1-10 MB", "10-100 MB", "100 MB or more")
    return names[sum(size >= 10**power for power in range(3, 9))]
