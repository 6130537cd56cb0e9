"""What the kernel does for want of memory is told from a suspect's doing, without control groups too."""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from celery_poison.basics import procfs
from celery_poison.basics.procfs import SCARCE, MemoryGroup
from celery_poison.cells.watcher import FLOOR, LOOK, NEAR, RECENT, Memory

MIB = 1 << 20


class Machine:
    """A machine of 8 GiB."""

    def __init__(self) -> None:
        self.figures = {"MemTotal": 8192 * MIB, "MemAvailable": 3072 * MIB}
        self.kills = 7

    def figure(self, name: str) -> int:
        return self.figures[name]

    def table(self, path: str) -> dict[str, int]:
        return {"oom_kill": self.kills} if path == "/proc/vmstat" else {}


@pytest.fixture
def machine(monkeypatch: Any) -> Machine:
    made = Machine()
    monkeypatch.setattr(procfs, "_limited_group", lambda: None)
    monkeypatch.setattr(procfs, "_machine", made.figure)
    monkeypatch.setattr(procfs, "_table", made.table)
    return made


def test_NEW_2_a_kill_of_the_kernel_on_the_whole_machine_is_noticed(machine: Machine) -> None:
    group = MemoryGroup()
    machine.figures["MemAvailable"] = 200 * MIB
    assert group.room() < 0
    assert not group.has_killed()
    machine.kills += 1
    machine.figures["MemAvailable"] = 3072 * MIB  # what was killed has given its memory back
    assert group.room() > 0
    assert group.has_killed()


def test_NEW_2_a_kill_in_a_container_beside_while_there_is_room_here_excuses_nobody(machine: Machine) -> None:
    group = MemoryGroup()
    assert group.room() > SCARCE
    machine.kills += 1
    assert not group.has_killed()


def test_NEW_2_a_kill_long_ago_excuses_nobody(machine: Machine) -> None:
    group = MemoryGroup()
    machine.figures["MemAvailable"] = 200 * MIB
    assert group.room() < 0
    machine.kills += 1
    for _ in range(2):
        assert group.has_killed()
        group.forget_old_kills()
    assert not group.has_killed()
    assert RECENT <= 1.0, "seconds that count as recent"


def test_NEW_2_a_machine_is_full_before_the_kernel_kills_and_it_is_known_who_filled_it(
    machine: Machine,
) -> None:
    group = MemoryGroup()
    assert group.room() > 0
    machine.figures["MemAvailable"] = 200 * MIB
    assert group.room() < 0
    assert group.is_filled_by(5000 * MIB) and not group.is_filled_by(100 * MIB)


# --- what is done about a cell -----------------------------------------------------------------------


class Group:
    """The memory group of a container of 1 GiB, of which one process takes what is taken."""

    left, most = 800 * MIB, 1024 * MIB
    is_filled, kills = True, False

    def room(self) -> int:
        return self.left

    def limit(self) -> int | None:
        return self.most or None

    def is_filled_by(self, taken: int) -> bool:
        return self.is_filled

    def has_killed(self) -> bool:
        return self.kills

    def forget_old_kills(self) -> None:
        pass


@pytest.mark.parametrize(
    ("taken", "room", "is_filled", "is_over", "can_confine"),
    [
        *itertools.product(
            [0, FLOOR - 1, FLOOR, 1000 * MIB],
            [-1, 0, FLOOR // NEAR, 1000 * MIB // NEAR, 1000 * MIB // NEAR + 1],
            *[[False, True]] * 3,
        )
    ],
)
def test_NEW_2_a_cell_is_stopped_when_its_suspect_fills_the_memory_and_confined_shortly_before(
    taken: int, room: int, is_filled: bool, is_over: bool, can_confine: bool, monkeypatch: Any
) -> None:
    held, group, limits = 50 * MIB, Group(), list[Any]()
    group.left, group.is_filled, group.most = room, is_filled, 1024 * MIB * can_confine
    monkeypatch.setattr(procfs, "resident", lambda pid: held)
    monkeypatch.setattr(
        resource, "prlimit", lambda *args: limits.append(args) or (resource.RLIM_INFINITY,) * 2
    )
    memory = Memory(1, held + taken - 1 if is_over else 0, group)  # type: ignore[arg-type]
    memory.before = procfs.resident(0)
    held += taken
    assert memory.look() == (is_over or (is_filled and room < 0))
    holds_three_quarters = taken >= FLOOR and taken >= 3 * room
    assert memory.is_confined == bool(limits) == (can_confine and is_filled and holds_three_quarters)


@pytest.mark.parametrize(
    ("status", "is_confined", "has_killed", "is_filled"),
    [*itertools.product([0, 1, 137, -6, -9, -11, -15], *[[False, True]] * 3)],
)
def test_NEW_2_want_of_memory_is_told_from_other_deaths(
    status: int, is_confined: bool, has_killed: bool, is_filled: bool
) -> None:
    group = Group()
    group.kills, group.is_filled = has_killed, is_filled
    memory = Memory(0, 0, group)  # type: ignore[arg-type]
    memory.is_confined = is_confined
    why = memory.why(status)
    if is_confined and status in (-6, -9, -11):
        assert why == "oom"
    elif status == -9 and has_killed:
        assert why == ("oom" if is_filled else "pressed")
    else:
        assert why == "", "as it ended"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    wait = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(wait, stdin=subprocess.PIPE) as made:
        yield made


@pytest.fixture
def memory(process: subprocess.Popen[bytes], monkeypatch: Any) -> Memory:
    made = Memory(process.pid, 0, Group())  # type: ignore[arg-type]
    monkeypatch.setattr(procfs, "resident", lambda pid: 1024 * MIB - made._group.room())
    return made


def _limit(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_DATA)[0]


def test_NEW_2_who_takes_the_memory_gets_what_is_left_and_no_more(
    memory: Memory, process: subprocess.Popen[bytes]
) -> None:
    memory.before = procfs.resident(0)
    for left in (800, 500, 300):
        memory._group.left = left * MIB
        assert not memory.look() and not memory.is_confined
    memory._group.left = 150 * MIB
    assert not memory.look() and memory.is_confined
    limit = _limit(process.pid)
    assert 140 * MIB < limit < 250 * MIB, "what it has, which is little here, and what is left"
    memory._group.left = 100 * MIB
    assert not memory.look() and _limit(process.pid) == limit, "once"
    memory._group.left = -1
    assert memory.look()


def test_NEW_2_nobody_is_confined_before_its_trial_or_without_a_limit_or_if_it_only_reserves(
    memory: Memory, process: subprocess.Popen[bytes], monkeypatch: Any
) -> None:
    memory._group.left = 10 * MIB
    assert not memory.look() and not memory.is_confined, "the app that it loads is not the suspect's doing"
    memory.before = procfs.resident(0)
    assert not memory.look() and not memory.is_confined, "nor what it held before"
    monkeypatch.setattr(Group, "most", 0)
    whole_machine = Memory(process.pid, 0, memory._group)
    monkeypatch.setattr(procfs, "resident", lambda pid: 0)
    whole_machine.before = 0
    monkeypatch.setattr(procfs, "resident", lambda pid: 900 * MIB)
    assert not whole_machine.look() and not whole_machine.is_confined
    assert _limit(process.pid) == resource.RLIM_INFINITY


def test_NEW_2_a_limit_that_cannot_be_set_changes_nothing(memory: Memory, monkeypatch: Any) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError

    memory.before = procfs.resident(0)
    memory._group.left = 150 * MIB
    monkeypatch.setattr(resource, "prlimit", refuse)
    assert not memory.look() and not memory.is_confined


@pytest.mark.parametrize(("left", "most"), [(9000, LOOK), (800, 0.1), (100, 0.0125), (1, 0.002), (-5, 0.002)])
def test_NEW_2_the_less_is_left_the_more_often_it_is_looked_at(
    memory: Memory, left: int, most: float
) -> None:
    memory._group.left = left * MIB
    memory.look()
    assert memory.pause == pytest.approx(most, rel=0.05)


def test_NEW_2_what_a_process_may_write_to_counts_when_it_is_only_reserved() -> None:
    before = procfs.data(os.getpid())
    reserved = bytearray(512 * MIB)
    assert procfs.data(os.getpid()) - before >= len(reserved)
    assert procfs.data(0) == 0
