"""The demo's app: a task that does its work, and one task for each way of killing the process that runs it.

It is made for a worker (``celery -A celery_poison.demo.app worker``) of which the environment names the Redis
server. There is no default, since these tasks kill: ``celery-poison demo --keep`` tells it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import redis
from celery import Celery, Task, current_task, signals
from kombu import serialization

from celery_poison import guarded
from celery_poison.model import FIRST
from celery_poison.testing import deaths

#: The URL of a Redis server, without a database; and 1 to leave the plugin out.
REDIS, PLAIN = "POISON_DEMO_REDIS", "POISON_DEMO_PLAIN"
HEALTHY = "demo.healthy"
#: In this format a message goes off while it is read, as a malicious or broken pickle does.
SERIALIZER = "demo-bomb"
#: Seconds: a healthy task; the pause in which tasks beside a poison begin.
WORK, HESITATION = 0.03, 0.05
#: Short, so that the demo shows a failover in seconds; the defaults are 3 s and 10 s.
HEARTBEAT, ACTIVATION = 0.4, 2.0
#: Plain Celery gives back a killed worker's messages after so many seconds, when kombu next looks: every
#: 100 s, and 10 s after a start. With the default, an hour, the loop would die out as soon as every poison
#: waits for a worker that is dead.
VISIBILITY = 5


class Poison(NamedTuple):
    """One way of dying: its task is ``demo.<name>``, and quarantine may give each of the causes."""

    name: str
    causes: frozenset[str]
    kill: Callable[[], object]

    @property
    def task(self) -> str:
        return f"demo.{self.name}"


_KILLED = frozenset({"signal:9"})
POISONS = (
    Poison("sigkill", _KILLED, deaths.sigkill),
    Poison("segfault", frozenset({"signal:11"}), deaths.segfault),
    Poison("os_exit", frozenset({"exit:7"}), deaths.exit_at_once),
    Poison("memory_error", frozenset({"memory_error"}), deaths.memory_error),
    Poison("sys_exit", frozenset({"system_exit", "exit:3"}), lambda: sys.exit(3)),
    Poison("hang", frozenset({"time_limit"}), deaths.hang),
    Poison("kill_worker", _KILLED, deaths.kill_main),
    Poison("kill_group", _KILLED, deaths.kill_group),
    # Its arguments kill, in the main process, before any task has begun.
    Poison("bomb", frozenset({"receive"}), deaths.sigkill),
)
SIGKILL, SEGFAULT, HANG, BOMB = POISONS[0], POISONS[1], POISONS[5], POISONS[-1]


class Tally:
    """The tasks' own count, in a Redis database of its own, without asking the plugin.

    Every write waits for its answer: the caller's next line may kill the process.
    """

    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url, decode_responses=True)

    def count(self, what: str, name: object) -> None:
        """Count one more; ``what``: finished, killed, or born in a worker."""
        self._client.hincrby(f"demo:{what}", str(name), 1)

    def counts(self, what: str) -> dict[str, int]:
        return {name: int(number) for name, number in self._client.hgetall(f"demo:{what}").items()}

    def repair(self, poison: Poison) -> None:
        """From now on this poison does no harm: its task is repaired."""
        self._client.sadd("demo:repaired", poison.name)

    def is_repaired(self, poison: Poison) -> bool:
        return bool(self._client.sismember("demo:repaired", poison.name))


def expected(n: int) -> int:
    """Return the result of the healthy task number ``n``."""
    return n * n


def build_app(redis_url: str, *, plain: bool = False, current: bool = False) -> Celery:
    """Return the app on a Redis server, whose databases 0 to 2 it uses.

    Args:
        plain: without the plugin; late acknowledgement is all that Celery itself offers.
        current: make it this process's current app; a worker does.
    """
    # Celery prefers these to what an app says: the poison would go to real workers.
    for name in ("BROKER_URL", "BROKER_READ_URL", "BROKER_WRITE_URL", "RESULT_BACKEND", "CONFIG_MODULE"):
        os.environ.pop(f"CELERY_{name}", None)
    app = Celery("celery_poison_demo", set_as_current=current)
    app.conf.update(
        broker_url=f"{redis_url}/0",
        result_backend=f"{redis_url}/1",
        broker_connection_retry_on_startup=True,
        accept_content=["json", SERIALIZER],
    )
    if plain:
        app.conf.update(
            task_acks_late=True,
            task_reject_on_worker_lost=True,
            broker_transport_options={"visibility_timeout": VISIBILITY},
        )
    else:
        app.conf.update(poison_heartbeat_interval=HEARTBEAT, poison_activation_interval=ACTIVATION)
    _register(app, Tally(f"{redis_url}/2"), (lambda task: task) if plain else guarded)
    return app


def _register(app: Celery, tally: Tally, guard: Callable[[Any], Any]) -> None:
    """Give the app its tasks. Not shared: Celery would give a shared task to every app of this process."""
    serialization.register(SERIALIZER, json.dumps, _reader(tally), f"application/x-{SERIALIZER}", "utf-8")
    signals.worker_process_init.connect(
        lambda **_: tally.count("born", os.getppid()), weak=False, dispatch_uid=SERIALIZER
    )

    @guard
    @app.task(shared=False, name=HEALTHY)
    def healthy(n: int) -> int:
        time.sleep(WORK)
        tally.count("finished", n)
        return expected(n)

    for poison in POISONS:
        options = deaths.LATE if poison is HANG else {}
        task: Task = app.task(shared=False, name=poison.task, **options)(_harmful(tally, poison))
        guard(task)


def _harmful(tally: Tally, poison: Poison) -> Callable[[], str]:
    def harmful() -> str:
        if tally.is_repaired(poison):
            return "repaired"
        time.sleep(HESITATION)
        if not getattr(current_task.request, "poison", FIRST).on_trial:
            tally.count("killed", poison.name)  # on trial it does no harm, and the ledger counts its death
        poison.kill()
        return "survived"

    return harmful


def _reader(tally: Tally) -> Callable[[str], Any]:
    def read(body: str) -> Any:
        if not tally.is_repaired(BOMB):
            tally.count("killed", BOMB.name)
            BOMB.kill()
        return json.loads(body)

    return read


if REDIS in os.environ:
    app = build_app(os.environ[REDIS], plain=os.environ.get(PLAIN) == "1", current=True)
