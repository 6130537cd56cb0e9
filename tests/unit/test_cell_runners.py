"""A cell's thread beside a worker that leaves: what it has not begun by then stays unbegun."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from celery_poison.sandbox.pool import Runner
from celery_poison.sandbox.trial import Trial
from celery_poison.testing import wait_until


class Cell:
    """One that begins what it is told to, and never says a word about it."""

    def __init__(self) -> None:
        self.tasks = {"t"}
        self.pid = 0
        self.told: list[Any] = []
        self.orders: list[bytes] = []
        self.ended = threading.Event()

    def run(self, arguments: Any, alone: int) -> None:
        self.told.append(arguments)

    def next(self, pause: float) -> None:
        self.ended.wait(0.05)

    def order(self, letter: bytes) -> None:
        self.orders.append(letter)

    def close(self, *, kill: bool = False) -> None:
        self.ended.set()

    kill = abandon = close


def ignore(*_: Any) -> None: ...


def begin(cell: Cell, opening: threading.Event, may_open: threading.Event) -> tuple[Runner, Any]:
    def open_cell() -> Any:
        opening.set()
        may_open.wait()
        return cell

    host: Any = SimpleNamespace(
        loop=SimpleNamespace(epoch=1, call_in_loop=lambda call: None),
        shutdown=SimpleNamespace(is_begun=False),
    )
    cells: Any = SimpleNamespace(host=host, open_cell=open_cell, refused=ignore, finished=ignore)
    runner = Runner(cells)
    request: Any = SimpleNamespace(type="t", epoch=1, alone=2)
    runner.take(Trial(request, ("it",), ignore, ignore, ignore, ignore, None, None))
    return runner, host


def test_NEW_9_a_trial_whose_cell_was_only_opening_does_not_begin_once_its_worker_leaves() -> None:
    cell, opening, may_open = Cell(), threading.Event(), threading.Event()
    runner, host = begin(cell, opening, may_open)
    opening.wait()
    assert not runner.has_begun, "nobody waits for a cell that is only opening"
    host.shutdown.is_begun = True
    may_open.set()
    runner.stop()
    runner.join()
    assert cell.told == []


def test_NEW_9_nor_when_its_runner_was_stopped_while_it_opened() -> None:
    cell, opening, may_open = Cell(), threading.Event(), threading.Event()
    runner, _ = begin(cell, opening, may_open)
    opening.wait()
    runner.stop()
    may_open.set()
    runner.join()
    assert cell.told == []


def test_NEW_9_what_was_handed_to_a_cell_counts_as_begun_before_the_cell_has_said_so() -> None:
    cell, opening, may_open = Cell(), threading.Event(), threading.Event()
    may_open.set()
    runner, _ = begin(cell, opening, may_open)
    wait_until(lambda: cell.told != [], what="the trial is handed over")
    assert runner.has_begun
    runner.stop()
    runner.join()
    assert b"k" in cell.orders
