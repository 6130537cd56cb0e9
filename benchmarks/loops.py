"""What one poison costs plain Celery, Celery 5.7 with its own cap, and a guarded app: the README's table.

See README.md beside this file for what is done and printed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import redis
import repository  # noqa: F401 - whose `tests` are meant below
from celery import Celery, signals
from kombu import Queue

HEALTHY = 200
SETUPS = ("plain", "capped", "guarded")
#: Broker, whom the poison kills, and seconds for which a fleet without the plugin is watched.
ROWS = (
    ("redis", "process", 20),
    ("rabbitmq", "process", 20),
    ("rabbitmq", "worker", 40),
    ("redis", "worker", 40),
    ("quorum", "process", 20),
)
#: Celery's default for the pause before a retry is three minutes.
RETRY_DELAY = 1
DELIVERY_LIMIT = 4

_main_pid = os.getpid()


@signals.worker_init.connect
def _remember_main_process(**_: Any) -> None:
    global _main_pid
    _main_pid = os.getpid()


def make_app() -> Celery:
    """The app of one fleet, as the environment says."""
    setup = os.environ["LOOPS_SETUP"]
    app = Celery("loops", broker=os.environ["LOOPS_BROKER"], backend=os.environ["LOOPS_BACKEND"])
    app.conf.broker_connection_retry_on_startup = True
    if os.environ["LOOPS_QUORUM"]:
        arguments = {"x-queue-type": "quorum", "x-delivery-limit": DELIVERY_LIMIT}
        app.conf.task_queues = [Queue("celery", queue_arguments=arguments)]
        app.conf.worker_detect_quorum_queues = True
    if setup == "guarded":
        from celery_poison import install

        app.conf.poison_redis_url = os.environ["LOOPS_BACKEND"]
        install(app, poison_guard_all=True)
    counts = redis.Redis.from_url(os.environ["LOOPS_COUNTS"])
    options: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True, "shared": False}
    if setup == "capped":
        options |= {"retry_on_worker_lost": True, "default_retry_delay": RETRY_DELAY}

    @app.task(name="healthy", **options)
    def healthy(number: int) -> None:
        time.sleep(0.02)
        counts.sadd("done", number)

    @app.task(name="poison", **options)
    def poison(victim: str) -> None:
        counts.incr("deaths")
        is_main = os.getpid() == _main_pid
        os.kill(os.getpid() if victim == "process" or is_main else os.getppid(), signal.SIGKILL)
        time.sleep(600)  # a pool process outlives its worker for a moment

    return app


class Seen(NamedTuple):
    """What came of one fleet."""

    deaths: int
    done: int
    seconds: float  #: until all healthy tasks were done and the poison was in quarantine, or of watching
    state: str  #: of the poison's result
    queued: int
    kept: int  #: in quarantine


def play(setup: str, broker: str, victim: str, seconds: float) -> Seen:
    """Run one fleet, the poison in front of the healthy tasks, and count from outside the plugin."""
    from celery_poison.testing import RedisServer, Supervisor, Worker
    from tests.harness.servers import RabbitServer

    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        rabbit = stack.enter_context(RabbitServer()) if broker != "redis" else None
        url = rabbit.url() if rabbit else server.url(0)
        env = {
            "LOOPS_SETUP": setup,
            "LOOPS_BROKER": url,
            "LOOPS_BACKEND": server.url(1),
            "LOOPS_COUNTS": server.url(2),
            "LOOPS_QUORUM": "yes" if broker == "quorum" else "",
        }
        os.environ.update(env)
        app = make_app()
        counts: Any = server.client(db=2)
        result = app.tasks["poison"].delay(victim)
        for number in range(HEALTHY):
            app.tasks["healthy"].delay(number)
        began = time.monotonic()
        stack.enter_context(
            Supervisor(lambda name: Worker("loops:app", name=name, env=env, cwd=Path(__file__).parent))
        )

        def kept() -> int:
            return len(_quarantined(app)) if setup == "guarded" else 0

        def is_over() -> bool:
            return setup == "guarded" and counts.scard("done") == HEALTHY and kept() > 0

        while not is_over() and time.monotonic() - began < seconds:
            time.sleep(0.1)
        took = time.monotonic() - began
        queued = _waiting(app)
        seen = Seen(int(counts.get("deaths") or 0), counts.scard("done"), took, result.state, queued, kept())
        app.close()
    return seen


def _waiting(app: Celery) -> int:
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        try:
            return int(channel.queue_declare("celery", passive=True).message_count)
        except connection.channel_errors:  # Redis has no empty queues
            return 0


def _quarantined(app: Celery) -> list[Any]:
    from celery_poison import Quarantine

    return list(Quarantine(app).list())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=("redis", "rabbitmq", "quorum"), help="only these rows")
    parser.add_argument("--victim", choices=("process", "worker"), help="only these rows")
    parser.add_argument("--setup", choices=SETUPS, help="only this column")
    parser.add_argument("--seconds", type=float, help="watch for so long instead")
    parser.add_argument("--json", type=Path, help="write all figures there too")
    wanted = parser.parse_args()
    found = []
    for broker, victim, seconds in ROWS:
        if wanted.broker in (None, broker) and wanted.victim in (None, victim):
            for setup in (wanted.setup,) if wanted.setup else SETUPS:
                patience = 300 if setup == "guarded" else seconds
                seen = play(setup, broker, victim, wanted.seconds or patience)
                found.append({"broker": broker, "victim": victim, "setup": setup, **seen._asdict()})
                print(json.dumps(found[-1]), flush=True)
    if wanted.json:
        wanted.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
else:
    app = make_app()
