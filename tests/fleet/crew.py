"""A crew that can freeze, and the invariants that hold after whatever happened to it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from celery.result import AsyncResult

from celery_poison.plugin import plugin_of
from celery_poison.testing import Worker
from tests.fleet.apps import build, let_go
from tests.worker.conftest import Crew


@dataclass
class Watched(Crew):
    """A fleet whose task `holds` runs until it is let go, and returns the pid of who ran it."""

    module = "tests.fleet.app"
    build = staticmethod(build)

    def hold(self, count: int) -> list[AsyncResult]:
        return [self.send("holds", n) for n in range(count)]

    def let_go(self, who: int | str = "all") -> None:
        let_go(self.marks, who)

    # --- waiting -------------------------------------------------------------------------------

    def held_by(self, worker: Worker) -> set[str]:
        """Return the ids of the messages that processes of ``worker`` have begun, once or more often."""
        mine = {worker.main_pid, *worker.session_pids()}
        return {m.id for m in self.marks.all("holds", "start") if m.pid in mine or m.ppid in mine}

    def await_held(self, worker: Worker, count: int) -> set[str]:
        self.await_that(lambda: len(self.held_by(worker)) >= count, f"{worker.name} runs {count} tasks")
        return self.held_by(worker)

    def await_events(self, kind: str, count: int = 1) -> list[dict[str, str]]:
        self.await_that(lambda: len(self.events(kind)) >= count, f"{count} of {kind}")
        return self.events(kind)

    def evidence(self) -> str:
        """Return the journal and the logs, for the message of a failed assertion."""
        fields = ("at", "event", "id", "token", "worker", "cause", "outcome", "note")
        lines = (" ".join(entry[name] for name in fields if entry[name]) for entry in self.events())
        left = f"left behind: {self.left_behind()}"
        return "\n".join([*lines, left, f"marks {self.marks.all()}", _telling(self.log_text())[-5000:]])

    # --- how it stands -------------------------------------------------------------------------

    def await_invariants(
        self, results: Iterable[AsyncResult], *, flagged: Iterable[str] = (), stale: int = 0
    ) -> None:
        """Wait until everything is done; then hold what was seen against what must be true.

        To be called while workers live that can do the rest.

        Args:
            flagged: ids of what was running when its process died: these, and no others, get a strike.
            stale: ends of starts that had lost their messages; each may have run to its end.
        """
        results = list(results)
        self.await_that(lambda: all(r.state == "SUCCESS" for r in results), "every message done")
        self.await_that(lambda: not self.left_behind(), "nothing left")
        done = Counter(e["id"] for e in self.events("finished"))
        ended = Counter(mark.id for mark in self.marks.all("holds", "end"))
        story = self.evidence()
        for result in results:
            assert done[result.id] == 1, f"{result.id} finished {done[result.id]} times\n{story}"
            assert ended[result.id] >= 1, f"{result.id} never ended\n{story}"
        assert sum(ended.values()) - len(results) <= stale, f"more ends than messages\n{story}"
        assert not self.marks.all("holds", "twice"), f"ran twice at one time\n{story}"
        assert {e["id"] for e in self.events("crashed")} == set(flagged), story
        assert not self.quarantine.list(), story
        assert not self.quarantine.list(candidates=True), story

    def left_behind(self) -> dict[str, Any]:
        """Return what of messages and starts is still somewhere, empty at the end."""
        plugin = plugin_of(self.app)
        ledger, prefix = plugin.open_ledger().client, plugin.keys.prefix
        names = ("running", "done", "open", "parcels", "candidates")
        found = {name: _size(ledger, prefix + name) for name in names}
        if self.broker_url.startswith("redis"):
            broker = redis.Redis.from_url(self.broker_url)
            found |= {name: _size(broker, name) for name in ("celery", "unacked", "unacked_index")}
            found["arriving"] = sum(map(broker.llen, broker.keys("poison.arriving.*.*")))
        else:
            with self.app.connection_for_read() as connection:
                found["celery"] = connection.default_channel.queue_declare("celery", passive=True)[1]
        return {name: size for name, size in found.items() if size}


def _telling(log: str) -> str:
    """A worker's log without the greetings of each life."""
    return "\n".join(line for line in log.splitlines() if line.startswith(("[20", "---", "  File", "    ")))


def _size(client: redis.Redis, key: str) -> int:
    kind = client.type(key)
    sizes: dict[bytes, Any] = {b"hash": client.hlen, b"list": client.llen, b"zset": client.zcard}
    return int(sizes[kind](key)) if kind in sizes else 0


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stop processes for as long as the block lasts."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
