"""Workers that are run in ways which few of our tests use: the poison is convicted, the others are done."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from celery_poison.testing import Worker
from tests import PATIENCE, sampled
from tests.apps.harness import Fleet

HEALTHY = 12


class InThread(Worker):
    """A program that runs its worker in a thread."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", self.app, self.pool, str(self.concurrency), self.hostname]


@dataclass
class Odd(Fleet):
    module: ClassVar[str] = "tests.strangers.odd"


def _grow(odd: Odd, name: str) -> None:
    odd.app.control.pool_grow(2, destination=[f"{name}@test"], reply=True, timeout=PATIENCE, limit=1)


def _shrink(odd: Odd, name: str) -> None:
    odd.app.control.pool_shrink(1, destination=[f"{name}@test"], reply=True, timeout=PATIENCE, limit=1)


#: What is odd -> arguments of its worker, settings, and what happens while it runs.
WAYS: dict[str, tuple[list[str], dict[str, Any], list[Callable[[Odd, str], None]]]] = {
    "beat": (
        ["-B", "-s", "{directory}/schedule"],
        {"beat_schedule": {"tick": {"task": "fleet.healthy", "schedule": 0.5, "args": [-1]}}},
        [],
    ),
    "autoscale": (["--autoscale=4,1"], {}, []),
    "grown": ([], {}, [_grow]),
    "shrunk": ([], {}, [_grow, _shrink, _shrink]),
    "counts-sigchld": ([], {}, []),
    "reaps-sigchld": ([], {}, []),
    "forks-helpers": ([], {}, []),
    "one-task-each": (["--max-tasks-per-child=1"], {}, []),
    "little-memory": (["--max-memory-per-child=1000"], {}, []),
}
POISONS = {"kill_child": "signal:9", "kill_group": "worker_lost"}
ALWAYS = [("beat", "kill_group"), ("autoscale", "kill_child"), ("one-task-each", "kill_child")]
#: Celery does not hear of a pool process for which somebody else has waited, with the plugin or without.
UNHEARD = ("reaps-sigchld", "kill_child")
OTHERS = [(way, poison) for way in WAYS for poison in POISONS if (way, poison) not in [*ALWAYS, UNHEARD]]


@pytest.mark.parametrize(("way", "poison"), sampled(ALWAYS, OTHERS))
def test_a_poison_is_convicted_in_a_worker_that_is_run_in_an_odd_way(
    assemble: Callable[..., Odd], redis_url: str, way: str, poison: str
) -> None:
    args, settings, deeds = WAYS[way]
    odd = assemble(Odd, redis_url, **settings)
    given = [arg.format(directory=odd.directory) for arg in args]

    def life(name: str) -> Worker:
        return odd.worker(name, args=given, env={"ODD": way})

    name, lives = "w1", 1
    worker = life(name).start().wait_ready()
    try:
        for deed in deeds:
            deed(odd, name)
        killer = odd.send(poison)
        results = [odd.send("healthy", number, 0.05) for number in range(HEALTHY)]
        while not odd.quarantine.list():
            odd.await_that(lambda: odd.quarantine.list() or not worker.is_alive(), "convicted, or dead")  # noqa: B023
            if not worker.is_alive():
                worker.wait()
                lives += 1
                worker = life(f"w{lives}").start()
        worker.wait_ready()
        assert [each.get(timeout=PATIENCE) for each in results] == [*range(HEALTHY)], odd.evidence()
        (kept,) = odd.quarantine.list()
        assert (kept.id, kept.crashes) == (killer.id, 2), kept
        odd.await_that(lambda: not odd.quarantine.list(candidates=True), "nobody else is suspected")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.log_text()[-3000:]
    finally:
        worker.stop()
    assert lives == (1 if poison == "kill_child" else 2)
    counts = odd.marks.count("healthy", "end")
    again = [number for number in range(HEALTHY) if counts[number] != 1]
    # A task whose worker is killed after its last line and before its acknowledgement runs once more.
    assert len(again) < lives and all(counts[number] == 2 for number in again), counts


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads", "solo"]))
def test_a_poison_is_convicted_in_a_worker_that_is_a_thread_of_another_program(
    assemble: Callable[..., Odd], redis_url: str, pool: str
) -> None:
    odd = assemble(Odd, redis_url)
    poison = odd.send("kill_child" if pool == "prefork" else "system_exit")
    results = [odd.send("healthy", number) for number in range(HEALTHY)]
    here = {"env": odd.environ(), "log_path": odd.directory / "thread.log"}
    with InThread("tests.strangers.odd", name="w1", pool=pool, **here) as worker:
        worker.wait_ready()
        odd.await_that(lambda: odd.quarantine.list(), "convicted")
        assert [each.get(timeout=PATIENCE) for each in results] == [*range(HEALTHY)], odd.evidence()
        (kept,) = odd.quarantine.list()
        assert (kept.id, kept.crashes) == (poison.id, 2)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.log_text()[-3000:]
