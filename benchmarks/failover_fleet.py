"""A fleet under a steady load: private servers, supervised workers, and somebody who keeps sending."""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, Self

import chronicle
import failover_app
import repository  # noqa: F401 - whose `tests` are meant below
from chronicle import Chronicle

from celery_poison.basics import procfs
from celery_poison.ledger.fleet_model import Incident
from celery_poison.plugin import plugin_of
from celery_poison.states import State
from celery_poison.testing import RedisServer, Supervisor, Worker, wait_until
from tests.harness.servers import RabbitServer

HERE = Path(__file__).resolve().parent
#: In the environment of every process that is started here, and so in that of its descendants.
TAG = "FAILOVER_TAG"


class Load(NamedTuple):
    """What the fleet is, and what it has to do: messages per second, seconds of the shortest and longest.

    ``backlog`` messages wait in the queue at any time, whatever the rate; 0: it is as long as it gets.
    """

    workers: int
    pool: str
    concurrency: int
    rate: float
    shortest: float
    longest: float
    seed: int
    backlog: int = 0


#: The queue of all messages, and seconds between two looks at its length.
QUEUE, LOOK = "celery", 0.05


class Fleet:
    """Starts everything on entering, and leaves no process behind.

    Args:
        broker: ``redis`` (which holds the ledger, too) or ``rabbitmq``.
        heartbeat: ``broker_heartbeat`` in seconds; None leaves Celery's default.
    """

    def __init__(self, broker: str, load: Load, heartbeat: float | None = None) -> None:
        self._broker, self._load, self._heartbeat = broker, load, heartbeat
        self._tag = secrets.token_hex(8)
        self._lives: dict[str, Worker] = {}
        self._stack = ExitStack()
        self._sending = threading.Event()
        self.sent: dict[str, float] = {}
        self.left_behind = 0

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
        broker = enter(RabbitServer()).url() if self._broker == "rabbitmq" else ledger.url(0)
        self._env = {
            "FAILOVER_BROKER": broker,
            "FAILOVER_LEDGER": ledger.url(1),
            "FAILOVER_MARKS": notes.url(),
            "FAILOVER_HEARTBEAT": str(self._heartbeat or ""),
            TAG: self._tag,
        }
        self.app = failover_app.build(self._env)
        self._stack.callback(self.app.close)
        self.queries = plugin_of(self.app).open_ledger().read
        self.chronicle = Chronicle(notes.url())
        self._stack.callback(self._sweep)
        self.supervisor = enter(Supervisor(self._make, self._load.workers, give_up_after=1_000_000))
        feeder = threading.Thread(target=self._feed, name="feeder", daemon=True)
        feeder.start()
        self._stack.callback(feeder.join)
        self._stack.callback(self.stop_sending)
        wait_until(lambda: self.is_whole({}), 120, what=lambda: f"the fleet works\n{self.log_text()}")

    def _make(self, name: str) -> Worker:
        life = f"{name}/{len(self._lives) + 1}"
        self.chronicle.lives[life] = chronicle.Life(name)
        self._lives[life] = Worker(
            "failover_app",
            name=name,
            pool=self._load.pool,
            concurrency=self._load.concurrency,
            env={**self._env, "FAILOVER_LIFE": life},
            cwd=HERE,
            loglevel="WARNING",
        )
        return self._lives[life]

    def _sweep(self) -> None:
        left = procfs.carrying(TAG, self._tag)
        self.left_behind = len(left)
        for pid in left:
            os.kill(pid, signal.SIGKILL)

    # -- the load

    def send(self, task: str, name: str, seconds: float) -> None:
        self.app.tasks[f"failover.{task}"].apply_async((seconds,), task_id=name)
        self.sent[name] = time.time()

    def send_healthy(self, dice: random.Random, name: str) -> None:
        self.send("healthy", name, round(dice.uniform(self._load.shortest, self._load.longest), 3))

    def _feed(self) -> None:
        if self._load.backlog:
            self._top_up()
        dice, number, due = random.Random(self._load.seed), 0, time.monotonic()
        while not self._sending.wait(max(0.0, due - time.monotonic())):
            number += 1
            self.send_healthy(dice, f"h{number}")
            # After a stall of the machine it goes on at its pace instead of making up for it.
            due = max(due, time.monotonic() - 1.0) + 1 / self._load.rate

    def _top_up(self) -> None:
        """Keep so many messages waiting."""
        dice, number = random.Random(self._load.seed), 0
        with self.app.connection_for_write() as connection, connection.default_channel as channel:
            while not self._sending.wait(LOOK):
                waiting = channel.queue_declare(QUEUE, passive=number > 0, durable=True, auto_delete=False)
                for _ in range(self._load.backlog - waiting.message_count):
                    number += 1
                    self.send_healthy(dice, f"h{number}")

    def stop_sending(self) -> None:
        self._sending.set()

    # -- the workers

    def present(self) -> dict[str, Worker]:
        """Return the workers by the names of their lives."""
        now = self.supervisor.workers
        return {life: worker for life, worker in list(self._lives.items()) if worker in now}

    def is_whole(self, since: dict[str, float]) -> bool:
        """Has every worker received a message, if it was revived, after that?"""
        self.chronicle.update()
        received = self.chronicle.received
        return all(
            max(received[life].values(), default=0.0) > since.get(life, 0.0) for life in self.present()
        )

    def signal_all(self, life: str, number: signal.Signals) -> None:
        """Send a signal to every process of a worker, the group at one moment."""
        with suppress(ProcessLookupError):
            os.killpg(self._lives[life].main_pid, number)
        # What it started in a session of its own is in the same container; other fleets have equal lives.
        mine = procfs.carrying(TAG, self._tag)
        for pid in procfs.carrying("FAILOVER_LIFE", life):
            if pid not in mine:
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    # -- what became of it

    def unfinished(self) -> list[str]:
        self.chronicle.update()
        return [name for name in list(self.sent) if not self.chronicle.is_done(name)]

    def convicted(self) -> list[str]:
        """Return the names of the messages in quarantine."""
        return [id for _, id in self.queries.kept_ids(State.NDLV)]

    def incident(self, worker: str, since: float) -> Incident | None:
        """Return the first incident of a worker's name that was noticed after ``since``."""
        found = (
            one
            for one in reversed(self.queries.incidents(20))
            if one.worker.startswith(f"{worker}@") and (one.noticed_at or 0.0) > since
        )
        return next(found, None)

    def log_text(self) -> str:
        return self.supervisor.log_text()
