"""Private servers and workers of one of the compared setups, and what can be seen of them from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import comparison_apps
import repository  # noqa: F401 - whose `tests` are meant below

from celery_poison.testing import RedisServer, Supervisor, Worker

HERE = Path(__file__).resolve().parent
DEAD = "dead"


class Mark(NamedTuple):
    event: str
    name: str
    worker: int
    at: float


class Fleet:
    """Starts servers on entering, and leaves no process behind.

    Args:
        quorum: delivery limit of a quorum queue on RabbitMQ, whose dead letters are kept; None: Redis.
        prefetch: ``worker_prefetch_multiplier``; Relier's app has 1.
    """

    def __init__(self, setup: str, *, quorum: int | None = None, prefetch: int = 1) -> None:
        self.setup, self._quorum, self._prefetch = setup, quorum, prefetch
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # Append-only, as Relier asks for; the others get the same.
            self.server = stack.enter_context(RedisServer(options={"appendonly": "yes"}))
            self._notes = stack.enter_context(RedisServer()).client(socket_timeout=60)
            self.env = self._environment(self._start_rabbit(stack))
            if self.setup == "relier":
                self.extra = stack.enter_context(_Resurrector(self.env))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_rabbit(self, stack: ExitStack) -> str:
        if self._quorum is None:
            return ""
        from tests.harness.servers import RabbitServer

        return stack.enter_context(RabbitServer()).url()

    def _environment(self, rabbit: str) -> dict[str, str]:
        quorum = {"x-queue-type": "quorum", "x-delivery-limit": self._quorum}
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
        port = self._notes.connection_pool.connection_kwargs["port"]
        return {
            "COMPARE_SETUP": self.setup,
            "COMPARE_BROKER": rabbit or self.server.url(0),
            "COMPARE_LEDGER": self.server.url(1),
            "COMPARE_MARKS": f"redis://127.0.0.1:{port}/0",
            "COMPARE_QUEUE": json.dumps({**quorum, **letters}) if rabbit else "",
            "COMPARE_PREFETCH": str(self._prefetch),
            "RELIER_REDIS_URL": self.server.url(0),
            "RELIER_LOG_LEVEL": "WARNING",
            # Its own limit of 5,000 messages in 10 s would turn the load of a benchmark away.
            "RELIER_ADMISSION_LIMIT": "1000000",
        }

    # -- workers and messages

    def worker(self, name: str = "w1", concurrency: int = 2, loglevel: str = "INFO") -> Worker:
        return Worker(
            "comparison_apps", name=name, concurrency=concurrency, env=self.env, cwd=HERE, loglevel=loglevel
        )

    def supervise(self, workers: int, concurrency: int) -> Supervisor:
        """Workers that are started again; leave the block before the fleet's."""
        return Supervisor(lambda name: self.worker(name, concurrency), workers, give_up_after=1_000_000)

    def send(self, calls: list[Any]) -> float:
        """Send by a process of its own; how many seconds it took, without the start of the process."""
        command = [sys.executable, str(HERE / "comparison_apps.py")]
        environ = {**os.environ, **self.env}
        done = subprocess.run(
            command,
            env=environ,
            cwd=HERE,
            input=json.dumps(calls),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return float(done.stdout.splitlines()[-1])

    # -- what is seen

    def client(self, db: int = 0) -> Any:
        """The broker's Redis; a busy machine may keep it waiting."""
        return self.server.client(db, socket_timeout=60)

    def marks(self) -> list[Mark]:
        return [Mark(*json.loads(line)) for line in self._notes.lrange(comparison_apps.MARKS, 0, -1)]

    def names(self, event: str) -> list[str]:
        return [mark.name for mark in self.marks() if mark.event == event]

    def kept(self, names: list[str]) -> list[str]:
        """Which of these are in quarantine, or in Relier's dead letter queue."""
        if self.setup == "relier":
            with self.client() as client:
                letters = " ".join(client.hvals("rl:dlq"))
            return [name for name in names if json.dumps(name) in letters]
        if self.setup != "guarded":
            return []
        from celery_poison import Quarantine

        with comparison_apps.build(self.env) as app:
            return [one.id for one in Quarantine(app).list()]

    def unacknowledged(self) -> int:
        """Messages that Redis keeps for workers, the dead included, until the visibility timeout."""
        with self.client() as client:
            return int(client.hlen("unacked"))

    def dead_letters(self) -> list[str]:
        """The task ids of what RabbitMQ has dropped so far; they stay where they are."""
        with comparison_apps.build(self.env) as app, app.connection_for_read() as connection:
            channel = connection.default_channel
            channel.queue_declare(DEAD, durable=True, auto_delete=False)
            found = []
            while (message := channel.basic_get(DEAD)) is not None:
                found.append(message.headers["id"])
        return found


class _Resurrector:
    """The process that Relier's manual starts beside the workers."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = {**os.environ, **env}

    def __enter__(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [str(Path(sys.executable).with_name("rl")), "run-resurrector"],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
