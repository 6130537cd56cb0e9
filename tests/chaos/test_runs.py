"""The whole program on real servers and workers: the gate that every change passes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from celery_poison.testing import find_redis_binary
from tests.chaos.faults import possible
from tests.chaos.program import ChaosProcess
from tests.chaos.stage import SLOTS
from tests.harness.servers import RabbitServer
from tests.services import need

Start = Callable[..., ChaosProcess]

pytestmark = pytest.mark.timeout(600)

#: Seconds that a run may take beyond the time in which faults strike, on a busy machine.
REST = 400


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts the program with these arguments."""
    need(find_redis_binary() is not None, "redis-server")
    with ExitStack() as stack:

        def run(*arguments: str) -> ChaosProcess:
            if "rabbitmq" in arguments:
                need(RabbitServer.available(), "RabbitMQ")
            directory = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
            directory.mkdir()
            process = ChaosProcess(*arguments, directory=directory)
            stack.callback(process.stop)
            return process

        yield run


def holds(process: ChaosProcess, minutes: float, least: int = 100) -> None:
    told, progress = process.finish(minutes * 60 + REST)
    stories = [line for lines in told.get("stories", {}).values() for line in ("", *lines)]
    assert told.get("ok"), "\n".join([progress, *told.get("failed", []), *stories])
    assert told["messages"] > least
    assert not process.leftovers()


#: Faults after which a Redis has forgotten something, or refused it: what is lost then is excused anyway.
FORGETFUL = {"redis-empty", "redis-lost-second", "redis-full", "redis-failover", "redis-switch"}


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("pool", "broker", "seed"),
    [
        ("prefork", "redis", 567),
        pytest.param("threads", "redis", 87, marks=pytest.mark.matrix),  # CI has no time for a third minute
        ("prefork", "rabbitmq", 142),
    ],
)
def test_NEW_9_nothing_is_lost_and_nobody_innocent_convicted_in_a_minute_of_faults(
    start: Start, pool: str, broker: str, seed: int
) -> None:
    names = ",".join(name for name in possible(pool, broker) if name not in FORGETFUL)
    arguments = ("--pool", pool, "--broker", broker, "--seed", str(seed), "--faults", names)
    holds(start(*arguments, "--minutes", "1", "--json"), 1)


@pytest.mark.matrix
@pytest.mark.parametrize("trial", ["cell", "queue", "off"])
@pytest.mark.parametrize("broker", ["redis", "sentinel", "rabbitmq"])
@pytest.mark.parametrize("pool", SLOTS)
def test_NEW_9_the_same_for_every_fleet(start: Start, pool: str, broker: str, trial: str) -> None:
    arguments = ("--pool", pool, "--broker", broker, "--trial", trial, "--minutes", "0.5", "--json")
    holds(start(*arguments), 0.5, least=25 * SLOTS[pool])


@pytest.mark.matrix
def test_two_at_one_time_do_not_disturb_each_other_and_an_interrupted_one_leaves_nothing(
    start: Start,
) -> None:
    quiet = start("--faults", "net-drop", "--minutes", "0.3", "--json")
    broken_off = start("--faults", "stop-15,redis-pause", "--minutes", "5")
    broken_off.await_line("faults, in")
    broken_off.await_line("redis-pause")
    broken_off.process.send_signal(signal.SIGINT)
    broken_off.finish(60)
    assert broken_off.process.returncode == 128 + signal.SIGINT
    assert not broken_off.leftovers()
    holds(quiet, 0.3)
    assert quiet.process.returncode == 0


@pytest.mark.matrix
def test_plain_celery_is_judged_too(start: Start) -> None:
    told, progress = start("--plain", "--faults", "warm", "--minutes", "0.3", "--json").finish(
        0.3 * 60 + REST
    )
    assert told.get("plain"), progress
    assert told["messages"] > 100
    assert {text.partition(":")[0] for text in told["failed"]} <= {"lost", "done twice"}


def test_a_fault_that_does_not_exist_here_is_refused(start: Start) -> None:
    for name, why in (("redis-kil", "no such fault"), ("rabbit-kill", "not with prefork on redis")):
        process = start("--faults", name)
        _, said = process.finish(60)
        assert process.process.returncode == 2
        assert why in said
