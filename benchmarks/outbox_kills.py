"""Publisher, relay, broker and database are killed at random moments: what became of each message?

Every message that was committed must run, none that was rolled back, none twice, and the messages of one
publisher must reach each of two queues in their order. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from benchmarks import outbox_stores as stores
from benchmarks.postgres import PostgresServer, find_binaries
from celery_poison import guarded, install
from celery_poison.extensions.outbox import database, relay
from celery_poison.extensions.outbox.database import waiting_rows
from celery_poison.extensions.outbox.lanes import Lanes
from celery_poison.plugin import plugin_of
from celery_poison.testing import RedisServer, Worker, wait_until
from tests.harness.servers import RabbitServer

QUEUES = ("a", "b")
#: What was answered is in the kernel's hands, and survives the server: what is lost is lost by us.
SAFE = {"appendonly": "yes", "appendfsync": "no"}
#: Seconds; short, so that the work of a dead relay is taken over often, and that of a slow one, too.
LEASE = 0.5
#: Name -> kills by default.
SETUPS = {
    "one redis": 80,
    "another redis": 80,
    "rabbitmq": 40,
    "sqlite": 40,
    "postgresql": 40,
    "django sqlite": 40,
    "django postgresql rabbitmq": 40,
}


@dataclass
class Place:
    """Where everything is, as a process needs it to build the app."""

    broker: str
    ledger: str
    #: `poison_outbox_database`, and the same as SQLAlchemy names it.
    database: str
    orders: str
    directory: str

    @property
    def told(self) -> Path:
        """Numbers whose publisher was told that they are stored."""
        return Path(self.directory, "told")

    @property
    def ran(self) -> Path:
        return Path(self.directory, "ran")


def build(place: Place) -> Celery:
    app = Celery("kills", broker=place.broker, set_as_current=False)
    app.conf.update(
        poison_redis_url=place.ledger,
        poison_outbox=True,
        poison_outbox_database=place.database or None,
        poison_fail_open=False,
        poison_outbox_retry_interval=0.1,
        poison_outbox_resend_interval=0.2,
        task_ignore_result=True,
    )
    install(app)

    @guarded
    @app.task(shared=False, name="kills.run")
    def run(number: int) -> None:
        note(place.ran, number)

    return app


def note(path: Path, number: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{number}\n".encode())
    os.close(file)


def noted(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


# --- the processes that are killed ------------------------------------------------------------------------


def fork(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            logging.disable(logging.CRITICAL)
            work()
        finally:
            os._exit(0)
    return pid


def publish(place: Place, first: int) -> None:
    """Publish for ever; a fifth of the transactions are rolled back."""
    app, chance = build(place), random.Random(first)
    task = app.tasks["kills.run"]
    begin = stores.begin_with(place.database, place.orders, app) if place.database else None
    number = first
    while True:
        number += 1
        time.sleep(chance.random() * 0.02)
        try:
            if begin is None:
                task.apply_async((number,), queue=QUEUES[number % 2])
                note(place.told, number)
                continue
            with begin() as order:
                order(number)
                task.apply_async((number,), queue=QUEUES[number % 2])
                if chance.random() < 0.2:
                    raise LookupError
        except Exception:  # a server that was killed, or a transaction that is rolled back
            continue


def send(place: Place) -> None:
    relay.LEASE = database.LEASE = LEASE
    database.STANDBY = 0.1
    _use_django(place)
    relay.Relay(plugin_of(build(place))).run()


def _use_django(place: Place) -> None:
    if place.database == "django":
        stores.use_django(place.orders)


# --- a run ----------------------------------------------------------------------------------------------


@dataclass
class Fleet:
    """What runs, by name, and how it is started again."""

    place: Place
    servers: dict[str, Any]
    pids: dict[str, int] = field(default_factory=dict)
    lives: int = 0

    def start(self, name: str) -> None:
        self.lives += 1
        slot, life = int(name[-1]), self.lives
        if name.startswith("publisher"):
            self.pids[name] = fork(lambda: publish(self.place, slot * 10**9 + life * 10**5))
        else:
            self.pids[name] = fork(lambda: send(self.place))

    def kill(self, name: str) -> None:
        pid = self.pids.pop(name)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def blow(self, chance: random.Random) -> str:
        kinds = ["publisher"] * 3 + ["relay"] * 4 + [*self.servers]
        kind = chance.choice(kinds)
        if server := self.servers.get(kind):
            server.kill()
            time.sleep(chance.random() * 0.1)
            server.start()
            return kind
        name = kind + str(chance.randrange(2))
        self.kill(name)
        self.start(name)
        return kind


def run(name: str, kills: int, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    with ExitStack() as stack:
        place, servers = _stage(stack, name)
        fleet = Fleet(place, servers)
        blows: Counter[str] = Counter()
        try:
            for each in ("publisher0", "publisher1", "relay0", "relay1"):
                fleet.start(each)
            for _ in range(kills):
                time.sleep(0.1 + chance.random() * 0.8)
                blows[fleet.blow(chance)] += 1
            for each in ("publisher0", "publisher1"):
                fleet.kill(each)
            ledger = plugin_of(build(place)).open_ledger()
            wait_until(
                lambda: not Lanes(ledger).all() and _none_in(place.orders),
                what="everything is sent",
                timeout=300,
            )
        finally:
            for each in [*fleet.pids]:
                fleet.kill(each)
        arrived = _arrived(place)
        figures = {"setup": name, "seed": seed, "kills": dict(blows), **_judge(place, arrived)}
    return {
        **figures,
        "good": not any(figures[each] for each in ("lost", "rolled_back_ran", "twice", "overtaken")),
    }


def _none_in(orders: str) -> bool:
    waiting = waiting_rows(orders)
    return waiting is None or waiting.rows == 0


def _stage(stack: ExitStack, name: str) -> tuple[Place, dict[str, Any]]:
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="poison-kills-"))
    ledger = broker = stack.enter_context(RedisServer(options=SAFE))
    if "rabbitmq" in name:
        broker = stack.enter_context(RabbitServer())
    elif name != "one redis":
        broker = stack.enter_context(RedisServer(options=SAFE))
    servers: dict[str, Any] = {"broker": broker}
    orders = ""
    if "sqlite" in name:
        orders = f"sqlite:///{directory}/orders.db"
    if "postgresql" in name:
        servers["database"] = server = stack.enter_context(PostgresServer())
        orders = server.url
    with_django = "django" in name
    if with_django:
        os.waitpid(fork(lambda: stores.migrate(orders)), 0)
    if orders:
        stores.create(orders, with_outbox=not with_django)
    database = "django" if with_django else orders
    return Place(broker.url(), ledger.url(), database, orders, directory), servers


def _arrived(place: Place) -> dict[str, list[int]]:
    """Return the numbers in each queue, in the order in which they reached it; they stay there."""
    if place.broker.startswith("redis"):
        with redis.Redis.from_url(place.broker) as client:
            raw = {queue: client.lrange(queue, 0, -1)[::-1] for queue in QUEUES}
        bodies = {queue: [b64decode(json.loads(each)["body"]) for each in raw[queue]] for queue in QUEUES}
    else:
        with build(place).connection_for_read() as connection:  # what is not acknowledged stays
            channel = connection.default_channel
            bodies = {queue: [*iter(partial(_body, channel, queue), None)] for queue in QUEUES}
    return {queue: [json.loads(body)[0][0] for body in found] for queue, found in bodies.items()}


def _body(channel: Any, queue: str) -> bytes | None:
    message = channel.basic_get(queue)
    return message and message.body


def _judge(place: Place, arrived: dict[str, list[int]]) -> dict[str, Any]:
    everything = [number for numbers in arrived.values() for number in numbers]
    committed = stores.placed(place.orders) if place.database else {*noted(place.told)}
    _let_run(place, {*everything})
    ran = Counter(noted(place.ran))
    return {
        "committed": len(committed),
        "ran": len(ran),
        "copies_in_queues": len(everything) - len({*everything}),
        "lost": len(committed - {*ran}),
        # Of the ledger's own store nobody knows whether a publisher that was killed has stored its last one.
        "rolled_back_ran": len({*ran} - committed) if place.database else 0,
        "twice": sum(times > 1 for times in ran.values()),
        "overtaken": sum(_overtaken(numbers) for numbers in arrived.values()),
    }


def _overtaken(numbers: list[int]) -> int:
    """Return how many of a queue arrived, for the first time, after a later one of the same publisher."""
    newest: dict[int, int] = {}
    late, seen = 0, set[int]()
    for number in numbers:
        if number in seen:
            continue
        seen.add(number)
        slot = number // 10**9
        late += number < newest.get(slot, 0)
        newest[slot] = max(newest.get(slot, 0), number)
    return late


def _let_run(place: Place, expected: set[int]) -> None:
    env = {"OUTBOX_KILLS": json.dumps(asdict(place)), "PYTHONPATH": str(Path(__file__).parents[1])}
    here = Path(__file__).parents[1]
    with Worker("benchmarks.outbox_kills", pool="solo", concurrency=1, queues=QUEUES, env=env, cwd=here):
        wait_until(lambda: expected <= {*noted(place.ran)}, what="all have run", timeout=300)
        time.sleep(6.0)  # a second copy that waited, parked, comes back within that


if "OUTBOX_KILLS" in os.environ:  # the worker's app
    here = Place(**json.loads(os.environ["OUTBOX_KILLS"]))
    _use_django(here)
    app = build(here)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setup", nargs="+", default=[*SETUPS], choices=[*SETUPS])
    parser.add_argument("--kills", type=int, help=f"of each; default {SETUPS}")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    args = parser.parse_args()
    wanted = [each for each in args.setup if "postgresql" not in each or find_binaries()]
    figures = []
    for each in wanted:
        figures.append(run(each, args.kills or SETUPS[each], args.seed))
        print(json.dumps(figures[-1]), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2), encoding="utf-8")
    return 0 if all(each["good"] for each in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
