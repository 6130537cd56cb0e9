"""What the kernel does for want of memory is told from a suspect's doing, without control groups too."""

from __future__ import annotations

from typing import Any

import pytest

from celery_poison import procfs
from celery_poison.procfs import MemoryGroup
from celery_poison.sandbox.watcher import LOOK, RECENT

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
    monkeypatch.setattr(procfs, "_groups", lambda: iter(()))
    monkeypatch.setattr(procfs, "_machine", made.figure)
    monkeypatch.setattr(procfs, "_table", made.table)
    return made


def test_NEW_2_a_kill_of_the_kernel_on_the_whole_machine_is_noticed(machine: Machine) -> None:
    group = MemoryGroup()
    assert not group.has_killed()
    machine.kills += 1
    assert group.has_killed()


def test_NEW_2_a_kill_long_ago_excuses_nobody(machine: Machine) -> None:
    group = MemoryGroup()
    machine.kills += 1
    for _ in range(2):
        assert group.has_killed()
        group.forget_old_kills()
    assert not group.has_killed()
    assert RECENT * LOOK <= 1.0, "seconds that count as recent"


def test_NEW_2_a_machine_is_full_before_the_kernel_kills_and_it_is_known_who_filled_it(
    machine: Machine,
) -> None:
    group = MemoryGroup()
    assert not group.is_full()
    machine.figures["MemAvailable"] = 200 * MIB
    assert group.is_full()
    assert group.is_filled_by(5000 * MIB) and not group.is_filled_by(100 * MIB)
