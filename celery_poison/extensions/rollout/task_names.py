"""The names of the tasks that workers know: one set in the ledger for each digest of them.

A worker's record names its digest, so that no heartbeat grows. A set that no worker names expires.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable

from celery_poison.basics.text import decoded
from celery_poison.extensions.rollout.knowers import Knowers, sort_out
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.fleet_model import WorkerRecord
from celery_poison.ledger.writer import command

#: The key of the sets, and the field of a worker's record.
KEY, FIELD = "task_names", "tasks"
#: Seconds for which a set is kept, and after which a worker writes it again.
KEPT, AGAIN = 3600, 300.0
#: Seconds for which an answer is believed; workers that have ended, the newest, that are looked at.
FRESH, _ENDED = 1.0, 100


def digest_of(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


class Writing:
    """Writes the names of one worker's tasks, in its heartbeat thread."""

    def __init__(self, ledger: Ledger, names: Iterable[str]) -> None:
        names = sorted(names)
        key = ledger.keys.of(KEY, digest_of(names)).encode()
        add = command(b"SADD", key, *(name.encode() for name in names))
        self._commands = add + command(b"EXPIRE", key, b"%d" % KEPT)
        self._due = float("-inf")

    def __call__(self, send: Callable[[bytes], bool]) -> float:
        """Write them if that is due; return the seconds until then."""
        if time.monotonic() >= self._due and send(self._commands):
            self._due = time.monotonic() + AGAIN
        return AGAIN


class TaskNames:
    """Reads which living workers know a task, once a second at most."""

    def __init__(self, ledger: Ledger, activation: float) -> None:
        self.ledger, self._activation_ms = ledger, int(activation * 1000)
        self._read_at = float("-inf")
        self._workers: list[tuple[WorkerRecord, str]] = []
        self._digests: dict[str, frozenset[str]] = {}
        #: Nodes that were there for a task and a queue; seconds since a node ended, when that was read.
        self._knew: dict[tuple[str, str], tuple[str, ...]] = {}
        self._ended: dict[str, float] = {}

    def who_knows(self, task: str, queue: str) -> Knowers:
        """Return the living workers, sorted by whether they know a task and consume a queue.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        now = time.monotonic()
        if now - self._read_at > FRESH:
            self._workers, self._digests, self._read_at = self._read(), {}, now
        if task not in self._digests:
            self._digests[task] = self._digests_with(task)
        knowers = sort_out(self._workers, self._digests[task], queue)
        if knowers.here:
            self._knew[task, queue] = knowers.here
        elif left := self._knew.get((task, queue)):
            ago = min(self._ended.get(node, math.inf) for node in left)
            return knowers._replace(left=left, left_ago=ago)
        return knowers

    def _read(self) -> list[tuple[WorkerRecord, str]]:
        # Of who is late with a heartbeat it is the monitor's to say that it is dead.
        records, now_ms = self.ledger.read.workers(self._activation_ms), self.ledger.read.now_ms()
        ended = reversed(self.ledger.read.declared_dead(_ENDED).items())  # of one node, the newest counts
        self._ended = {worker.partition("/")[0]: (now_ms - at_ms) / 1000 for worker, at_ms in ended}
        self._ended |= dict.fromkeys((each.node for each in records if each.stopping), 0.0)
        workers = [each for each in records if not each.stopping]
        with clear_errors("reading what workers know"):
            pipe = self.ledger.client.pipeline(transaction=False)
            for worker in workers:
                pipe.hget(self.ledger.keys.worker(worker.worker), FIELD)
            digests = [decoded(digest or b"") for digest in pipe.execute()]
        return [*zip(workers, digests, strict=True)]

    def _digests_with(self, task: str) -> frozenset[str]:
        digests = sorted({digest for _, digest in self._workers if digest})
        with clear_errors("asking who knows a task"):
            pipe = self.ledger.client.pipeline(transaction=False)
            for digest in digests:
                pipe.sismember(self.ledger.keys.of(KEY, digest), task)
            knows = pipe.execute()
        return frozenset(digest for digest, is_known in zip(digests, knows, strict=True) if is_known)
