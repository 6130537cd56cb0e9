"""Private servers, proxies and a supervised fleet, and nothing left of them afterwards."""

from __future__ import annotations

import json
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis

from celery_poison.basics import procfs
from celery_poison.demo.programs import end_marked, private_environment
from celery_poison.testing import RedisServer, Supervisor, Worker, wait_until
from tests.chaos import runs
from tests.chaos.app import SETUP, UNPICKLED, WORK, Deadly, build
from tests.chaos.excuses import DEATH
from tests.chaos.runs import Blow, Sent
from tests.chaos.surroundings import CLOCK, CLOCKWORK, set_clock, small_disk
from tests.harness.cluster import ClusterSet
from tests.harness.proxy import TcpProxy
from tests.harness.servers import RabbitServer, SentinelSet

WORKERS = 3
QUEUE, TRIAL_QUEUE = "celery", "celery.trial"
#: What a worker of these pools runs at a time.
SLOTS = {"prefork": 4, "threads": 4, "gevent": 4, "solo": 1}
#: In the environment of every process that is started here, and so in that of its descendants.
TAG = "POISON_CHAOS_ID"
#: The same of one life: others that run side by side have lives of the same names.
OWN = "POISON_CHAOS_LIFE_ID"


@dataclass(frozen=True, slots=True)
class Options:
    """What the fleet is.

    ``disks``: temporary and append-only files are on small ones of their own. ``ledger``: beside the broker,
    on its Redis where it is one, or on a cluster.
    """

    pool: str = "prefork"
    broker: str = "redis"
    trial: str = "cell"
    plain: bool = False
    disks: bool = False
    ledger: str = "beside"

    @property
    def trial_worker(self) -> int:
        """The number of the worker that serves the trial queue alone; 0: none does."""
        return WORKERS if self.trial == "queue" else 0

    def slots_of(self, number: int) -> int:
        return 1 if number == self.trial_worker else SLOTS[self.pool]

    @property
    def slots(self) -> int:
        """What all that serve the ordinary queue run at a time."""
        return SLOTS[self.pool] * (WORKERS - bool(self.trial_worker))


class Stage:
    """Starts everything on entering; whatever happens, all of it ends on leaving.

    Args:
        directory: for logs and temporary files; it stays.
        seed: of the load.
        stopping: set by whoever wants all this to end.
    """

    rabbit: RabbitServer
    sentinel: SentinelSet
    cluster: ClusterSet

    def __init__(self, options: Options, directory: Path, seed: int, stopping: threading.Event) -> None:
        self.options, self.directory = options, directory
        #: Of the workers.
        self.numbers = range(1, WORKERS + 1)
        self.queues = [QUEUE, *([TRIAL_QUEUE] if options.trial_worker else [])]
        self.load = Load(self, seed)
        self.log = directory / "tasks.jsonl"
        self._logs = directory / "logs"
        self.temporary, self.redis_data = directory / "tmp", directory / "redis"
        self.clocks: dict[int, Path] = {}
        self.lives: dict[str, Worker] = {}
        self.deaths: list[Blow] = []
        self.stopping = stopping
        self._tag = secrets.token_hex(8)
        self._present: dict[str, str] = {}
        self.proxies: dict[int, list[TcpProxy]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start_servers(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_servers(self, stack: ExitStack) -> None:
        enter = stack.enter_context
        self._logs.mkdir()
        self.temporary.mkdir()
        self.redis_data.mkdir()
        if self.options.disks:
            enter(small_disk(self.temporary, 16))
            enter(small_disk(self.redis_data, 256))
        ports = []  # that workers reach through proxies: Sentinel tells them its own way
        if self.options.broker == "sentinel":
            self.sentinel = enter(SentinelSet())
        else:
            # Nothing that was answered is lost when this one is killed.
            kept = {"appendonly": "yes", "appendfsync": "always", "dir": self.redis_data}
            self._redis = enter(RedisServer(options=kept))
            ports.append(self._redis.port)
        if self.options.broker == "rabbitmq":
            self.rabbit = enter(RabbitServer())
            ports.append(self.rabbit.port)
        if self.options.ledger == "cluster":
            self.cluster = enter(ClusterSet(options={"cluster-require-full-coverage": "no"}))
        self.app = build(self._settings())
        stack.callback(self.app.close)
        for number in self.numbers:
            self.clocks[number] = self.directory / f"w{number}.clock"
            set_clock(self.clocks[number], 0.0)
            self.proxies[number] = [enter(TcpProxy("127.0.0.1", port)) for port in ports]
        stack.callback(end_marked, TAG, self._tag)
        self.fleet = Supervisor(self._make, WORKERS, give_up_after=1_000_000)
        # Who leaves before the end does not wait.
        stack.callback(self.fleet.stop, 0.0)

    def stop_fleet(self) -> None:
        """A warm shutdown of all workers. One more comes and goes, to clear up after those before it."""
        self.fleet.stop(30.0)
        if not self.options.plain:  # there a poison may wait for it
            with self._make("w1") as last:
                last.wait_ready()

    def _settings(self, proxies: Sequence[TcpProxy] = ()) -> dict[str, Any]:
        """Return those of the app, whose servers are reached through the proxies, if there are any."""
        on_sentinel, on_rabbit = (self.options.broker == name for name in ("sentinel", "rabbitmq"))
        urls = [self.sentinel.url() if on_sentinel else self.redis.url()]
        urls += [self.rabbit.url()] if on_rabbit else []
        if proxies:
            urls = [proxy.url(url) for proxy, url in zip(proxies, urls, strict=True)]
        settings: dict[str, Any] = {"broker_url": urls[-1]}
        if self.options.plain:
            settings |= {"task_acks_late": True, "task_reject_on_worker_lost": True}
        else:
            on_cluster = self.options.ledger == "cluster"
            settings |= {"poison_redis_url": self.cluster.url() if on_cluster else urls[0]}
            settings |= {"poison_trial": self.options.trial}
            settings["poison_stuck_after"] = 8.0  # no fault lasts for long
        transport: dict[str, Any] = {}
        if on_rabbit:
            transport["confirm_publish"] = True
            # Celery's own fault beside threads, see docs/known-limits.md.
            settings["worker_enable_prefetch_count_reduction"] = False
        elif self.options.plain:
            transport["visibility_timeout"] = 20  # else what a dead worker held comes back in an hour
        if on_sentinel:
            transport |= self.sentinel.transport_options
        return {**settings, "broker_transport_options": transport}

    def _make(self, name: str) -> Worker:
        if len(self.fleet.deaths) > len(self.deaths):
            status = self.fleet.deaths[-1].status
            now = time.monotonic()
            self.deaths.append(Blow(DEATH, now, now, (self._present[name],), note=f"status {status}"))
        life = f"{name}/{sum(one.startswith(f'{name}/') for one in self.lives) + 1}"
        number = int(name.removeprefix("w"))
        worker = Worker(
            "tests.chaos.app",
            name=name,
            pool=self.options.pool,
            concurrency=self.options.slots_of(number),
            queues=[self.queues[-1] if number == self.options.trial_worker else QUEUE],
            env=self._environment(number, life),
            cwd=self.temporary,
            log_path=self._logs / f"{life.replace('/', '-')}.log",
            defaults=True,
        )
        self._present[name], self.lives[life] = life, worker
        return worker

    def _environment(self, number: int, life: str) -> dict[str, str]:
        return {
            **private_environment(CLOCKWORK),
            SETUP: json.dumps(self._settings(self.proxies[number])),
            CLOCK: str(self.clocks[number]),
            TAG: self._tag,
            OWN: f"{self._tag}/{life}",
            runs.LOG: str(self.log),
            runs.LIFE: life,
            "TMPDIR": str(self.temporary),
            "C_FORCE_ROOT": "1",  # else a worker of root's refuses to accept pickle
        }

    def present(self, number: int) -> tuple[str, Worker]:
        """Return the present life of a worker, and its name. One that is made is started in a moment."""
        life = self._present[f"w{number}"]
        wait_until(lambda: self.lives[life].has_started, what=f"{life} is started")
        return life, self.lives[life]

    def life_of(self, node: str) -> str:
        """Return the present life of a worker, by the name of its node."""
        return self._present.get(node.partition("@")[0], node)

    def processes(self, life: str) -> list[int]:
        """Return the main process, pool processes, cells and watchers of one life."""
        return procfs.carrying(OWN, f"{self._tag}/{life}")

    @property
    def redis(self) -> RedisServer:
        """The one that holds the broker where that is Redis, and the ledger where that is beside it."""
        return self.sentinel.master if self.options.broker == "sentinel" else self._redis

    @property
    def ledger(self) -> RedisServer:
        """The one that holds the ledger at this moment."""
        return self.cluster.owner if self.options.ledger == "cluster" else self.redis

    def redis_answers(self) -> bool:
        try:
            with self.redis.client(socket_timeout=1, retry=None) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def wait(self, seconds: float) -> None:
        """Sleep, but not when somebody wants all this to end."""
        self.stopping.wait(max(0.0, seconds))


@contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Let a thread do that until the event is set that it is given, at the end of the block."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Load:
    """A steady stream of healthy messages, and a poison whenever the plan says so."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage = stage
        self._dice = random.Random(seed)
        self.sent: dict[str, Sent] = {}

    def feed(self, over: threading.Event) -> None:
        number, due = 0, time.monotonic()
        while not over.wait(max(0.0, due - time.monotonic())):
            number += 1
            self._send(f"h{number}", "healthy", WORK, (round(self._dice.uniform(0, 1.5), 3),))
            # After an outage it goes on at its pace instead of making up for it.
            due = max(due, time.monotonic() - 1.0) + 1 / self._stage.options.slots

    def send_poison(self, name: str) -> str:
        """Send one of a kind; return its task id."""
        number = 1 + sum(sent.kind == name and sent.sure for sent in list(self.sent.values()))
        return self._send(f"{name}{number}", name, f"chaos.{name}")

    def _send(self, id: str, kind: str, task: str, args: tuple[object, ...] = ()) -> str:
        """Send until the broker has said yes, each time under another id; return the last."""
        attempt, name = 0, id
        while not self._stage.stopping.is_set():
            attempt += 1
            name, at = f"{id}.{attempt}", time.monotonic()
            options = {}
            if kind == UNPICKLED:
                args, options = (Deadly(name),), {"serializer": "pickle"}
            try:
                self._stage.app.tasks[task].apply_async(args, task_id=name, retry=False, **options)
            except Exception:  # whatever it is: nobody knows whether it has arrived
                self.sent[name] = Sent(kind, at, sure=False)
                self._stage.wait(0.2)
            else:
                self.sent[name] = Sent(kind, at, sure=True)
                break
        return name
