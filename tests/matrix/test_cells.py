"""The matrix is what it says it is."""

from __future__ import annotations

from tests.apps.tasks import POISONS
from tests.matrix.cells import BROKERS, CELLS, DIAGONAL, POOLS, WAYS, WORKERS


def test_the_diagonal_touches_every_value_of_every_axis() -> None:
    assert set(DIAGONAL) <= set(CELLS)
    touched = [set(values) for values in zip(*DIAGONAL, strict=True)]
    assert touched == [set(BROKERS), set(POOLS), set(WAYS), set(WORKERS)]


def test_every_poison_task_has_its_cells() -> None:
    assert set(POISONS) == set(WAYS) - {"receive"}


def test_only_prefork_has_children_to_kill_and_hard_time_limits() -> None:
    missing = {(pool, way) for pool in POOLS for way in WAYS} - {(cell.pool, cell.way) for cell in CELLS}
    assert missing == {(pool, way) for pool in ("threads", "solo") for way in ("kill_child", "hard_limit")}
