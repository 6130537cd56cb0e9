"""The plan, the task log, the story and the bisection, each by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import PATIENCE
from tests.chaos import excuses, runs
from tests.chaos.faults import EVERY_BROKER, EVERY_POOL, KINDS, possible
from tests.chaos.plan import PAUSE, PEACE, make_plan, shortest
from tests.chaos.report import story
from tests.chaos.runs import Blow
from tests.chaos.surroundings import CLOCK, CLOCKWORK, set_clock
from tests.chaos.world import facts, run

_names = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, unique=True)


@given(_names, st.floats(1, 600), st.integers(), st.integers(1, 5))
def test_a_seed_gives_one_plan_in_which_every_fault_comes_up_before_one_comes_again(
    names: list[str], seconds: float, seed: int, workers: int
) -> None:
    plan = make_plan(names, seconds, seed, workers)
    assert plan == make_plan(names[::-1], seconds, seed, workers)
    assert all(PEACE <= fault.at < seconds and 1 <= fault.worker <= workers for fault in plan)
    pauses = [later.at - fault.at for fault, later in pairwise(plan)]
    assert all(PAUSE[0] - 0.02 <= pause <= PAUSE[1] + 0.02 for pause in pauses)
    times = Counter(fault.name for fault in plan)
    assert max(times.values(), default=0) - min(times[name] for name in names) <= 1


def test_another_seed_gives_another_plan() -> None:
    assert len({str(make_plan(sorted(KINDS), 60, seed, 3)) for seed in range(20)}) == 20


@pytest.mark.parametrize("pool", EVERY_POOL)
@pytest.mark.parametrize("broker", EVERY_BROKER)
def test_a_fleet_gets_the_faults_of_its_broker_only(pool: str, broker: str) -> None:
    names = possible(pool, broker)
    assert any(name.startswith("rabbit-") for name in names) == (broker == "rabbitmq")
    assert ("redis-failover" in names) == (broker == "sentinel")
    assert ("redis-kill" in names) == (broker != "sentinel")
    assert ("kill-child" in names) == (pool == "prefork")


def test_every_fault_that_excuses_exists() -> None:
    named = {name for row in excuses.EXCUSES for name in row.faults} | {*excuses.OUTAGES}
    assert named - {excuses.DEATH, excuses.GATE, excuses.SILENCE} <= KINDS.keys()


# --- the task log ----------------------------------------------------------------------------------


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert runs.read_lines(log) == []
    line = b'["end", "a", "r1", "w1/1", 1, false, 2.0]\n'
    with log.open("ab", buffering=0) as file:
        for written, read in ((line + line[:10], 1), (line[10:], 2), (line, 3)):
            file.write(written)
            assert len(runs.read_lines(log)) == read
    assert runs.read_lines(log, "begin") == []
    assert runs.read_lines(log, "end") == 3 * [runs.Line("end", "a", "r1", "w1/1", 1, False, 2.0)]


def test_processes_that_write_at_one_time_and_die_leave_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    code = (
        "import os; from tests.chaos.runs import write_line\n"
        "for n in range(500): write_line('step', 'x' * 50, str(n))\n"
        "write_line('kill', 'x', 'last'); os.kill(os.getpid(), 9)"
    )
    env = {**os.environ, runs.LOG: str(path), runs.LIFE: "w1/1"}
    writers = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(4)]
    assert [writer.wait(PATIENCE) for writer in writers] == [-9] * 4
    assert Counter(line.event for line in runs.read_lines(path)) == {"step": 2000, "kill": 4}


# --- the story -------------------------------------------------------------------------------------


def test_a_story_tells_in_order_what_happened_to_a_message_and_around_it() -> None:
    given = facts(run("a", 101, 102), blows=(Blow("redis-kill", 101.5, 101.6), Blow("warm", 500, 501)))
    entry = {"event": "crashed", "id": "a", "token": "t.1", "cause": "oom"}
    given = replace(given, journal=[(101.8, entry), (101.9, entry | {"id": "b"})])
    pid = given.runs["a"][0].pid
    assert story("a", given) == [
        "   +0.00 s  sent (healthy)",
        f"   +1.00 s  begin in w1/1, process {pid}",
        "   +1.50 s  FAULT redis-kill   until +1.60 s",
        "   +1.80 s  journal: event=crashed token=t.1 cause=oom",
        f"   +2.00 s  end in w1/1, process {pid}",
    ]


# --- the bisection ---------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 19), min_size=1, max_size=4))
def test_the_shortest_list_that_fails_is_found(guilty: set[int]) -> None:
    assert shortest(range(20), lambda part: guilty <= {*part}, 1000) == sorted(guilty)


@given(st.sets(st.integers(0, 19), min_size=1, max_size=4), st.integers(0, 12))
def test_when_no_more_may_be_asked_the_shortest_so_far_is_the_answer(guilty: set[int], runs: int) -> None:
    asked = []

    def fails(part: list[int]) -> bool:
        asked.append(part)
        return guilty <= {*part}

    found = shortest(range(20), fails, runs)
    assert len(asked) <= runs
    assert guilty <= {*found}
    assert all(asked), "a run without faults tells nothing of them"
    assert found == min([list(range(20)), *(part for part in asked if guilty <= {*part})], key=len)


# --- the clock -------------------------------------------------------------------------------------


def test_the_clock_of_a_process_can_be_moved_and_only_that(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    set_clock(clock, 0.0)
    code = (
        "import time; from time import time as other\n"
        "for _ in range(3): input(); print(time.time(), other(), time.time_ns() / 1e9, time.monotonic())"
    )
    env = {**os.environ, CLOCK: str(clock), "PYTHONPATH": str(CLOCKWORK)}
    with subprocess.Popen(
        [sys.executable, "-uc", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for seconds in (0.0, 3600.0, -7200.0):
            set_clock(clock, seconds)
            process.stdin.write("\n")
            process.stdin.flush()
            first, second, third, monotonic = map(float, process.stdout.readline().split())
            assert first - time.time() == pytest.approx(seconds, abs=60)
            assert second == pytest.approx(first, abs=60)
            assert third == pytest.approx(first, abs=60)
            assert monotonic == pytest.approx(time.monotonic(), abs=60)
