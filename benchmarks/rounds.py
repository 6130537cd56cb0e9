"""One round: a fresh Redis, a fresh worker, a queue that is full before the clock starts."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import NamedTuple

import cputime
import redis
import repository  # noqa: F401 - whose `tests` are meant below
import workers
from cputime import Cpu
from queues import RabbitQueue, RedisQueue

from celery_poison.testing import RedisServer, Worker, wait_until
from tests.harness.cluster import ClusterSet
from tests.harness.proxy import TcpProxy

WARM_UP = 200
#: Seconds of rest: after the warm-up and after the load, for the guarded worker to settle what was
#: acknowledged, and before the load, to measure what an idle worker costs.
SETTLE, REST = 3.5, 2.0


class Setup(NamedTuple):
    """What is run: which app, which task, how many messages, and by which worker.

    Attributes:
        defaults: with mingle and gossip, as Celery starts a worker.
        broker: ``redis`` (which holds the ledger, too) or ``rabbitmq``.
        delay: seconds that a proxy adds to a round trip to Redis.
        tree: a checkout whose celery_poison the worker imports; empty: this one.
        ledger: ``alone`` on a Redis of its own, or on a ``cluster``; empty: on the Redis that all have.
        hold: a hold by value that ``names`` the task and never catches, or that ``misses`` it; empty: none.
        without: extensions that are left out.
    """

    guarded: bool
    task: str
    tasks: int
    results: bool
    pool: str = "prefork"
    concurrency: int = 2
    defaults: bool = False
    broker: str = "redis"
    delay: float = 0.0
    tree: str = ""
    ledger: str = ""
    hold: str = ""
    without: str = ""


class Round(NamedTuple):
    """What came of it.

    Attributes:
        seconds: from the moment the queue was there to the last acknowledgement.
        cpu: seconds of processor time per task, settling included, an idle worker's share excluded.
        idle: seconds of processor time per second of rest.
        others: processors that somebody else kept busy meanwhile.
    """

    seconds: float
    cpu: Cpu
    idle: Cpu
    others: float


#: Tasks of a hold by value that names the measured one, and of one that does not.
HOLDS = {"names": "load.*", "misses": "elsewhere.*"}
#: Where a ledger can be that is not with the broker. Its processor time counts as nobody's.
_LEDGERS = {"alone": RedisServer, "cluster": ClusterSet}


def run(setup: Setup) -> Round:
    """Run one round."""
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        client = stack.enter_context(server.client(decode_responses=False))
        env = workers.environment(server, guarded=setup.guarded, results=setup.results)
        if setup.tree:
            env["PYTHONPATH"] = setup.tree
        if setup.ledger:
            env["BENCH_LEDGER"] = stack.enter_context(_LEDGERS[setup.ledger]()).url()
        if setup.without:
            env["BENCH_WITHOUT"] = setup.without
        queue = _queue(setup, server, env)
        stack.enter_context(queue)
        env["BENCH_BROKER"] = queue.url
        if setup.hold:
            workers.hold(env, HOLDS[setup.hold])
        ledger_url = env["BENCH_LEDGER"]
        if setup.delay:
            proxy = stack.enter_context(TcpProxy("127.0.0.1", server.port))
            proxy.delay = setup.delay / 2  # each way
            env = {name: proxy.url(url) if url.startswith("redis") else url for name, url in env.items()}
        started = workers.worker(env, pool=setup.pool, concurrency=setup.concurrency, defaults=setup.defaults)
        worker = stack.enter_context(started)
        queue.stage(WARM_UP)
        queue.release()
        queue.drain(worker)
        time.sleep(SETTLE)
        found = _measure(setup, client, worker, queue)
        if setup.hold == "names":  # each half minute its worker says so
            wait_until(lambda: workers.looks(ledger_url) >= setup.tasks, what="all messages looked at")
        return found


def _queue(setup: Setup, server: RedisServer, env: dict[str, str]) -> RedisQueue | RabbitQueue:
    if setup.broker == "redis":
        return RedisQueue(server, setup.task, guarded=setup.guarded, results=setup.results)
    return RabbitQueue(setup.task, env)


def _measure(setup: Setup, client: redis.Redis, worker: Worker, queue: RedisQueue | RabbitQueue) -> Round:
    pids = worker.child_pids()
    expected = setup.concurrency if setup.pool == "prefork" else 0
    if len(pids) != expected:
        raise RuntimeError(f"the pool has {len(pids)} processes instead of {expected}")

    def cpu() -> Cpu:
        return cputime.read(worker.main_pid, pids, client)

    queue.stage(setup.tasks)
    before, began = cpu(), time.monotonic()
    time.sleep(REST)
    idle = cpu().minus(before).times(1 / (time.monotonic() - began))
    before, everybody, began = cpu(), _strangers(), time.monotonic()
    queue.release()
    queue.drain(worker)
    seconds = time.monotonic() - began
    others = _strangers() - everybody - cpu().minus(before).total
    time.sleep(SETTLE)
    used = cpu().minus(before).minus(idle.times(SETTLE))
    if worker.child_pids() != pids or "ERROR" in worker.log_text():
        raise RuntimeError(f"something went wrong during the round\n{worker.log_text()}")
    return Round(seconds, used.times(1 / setup.tasks), idle, others / seconds)


def _strangers() -> float:
    """Return the processor time of everybody but this process."""
    return cputime.of_machine() - cputime.of_process(os.getpid())


def machine_is_quiet(limit: float, patience: float) -> bool:
    """Wait until less than ``limit`` processors are busy, at most ``patience`` seconds."""

    def quiet() -> bool:
        before = cputime.of_machine()
        time.sleep(1.0)
        return cputime.of_machine() - before < limit

    try:
        return wait_until(quiet, patience)
    except AssertionError:
        return False
