"""docs/versions.md has a row for each cell, as tests/versions/table.py writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import rows
from tests.versions import table
from tests.versions.table import CELLS, COLUMNS, COUNTS, NEWEST, NOT_RUN, OLDEST, YOUNGEST

ROW = "| 3.14.10 | 5.7.0 | 5.7.0 | 4.3.2 | 8.1.0 | Valkey 9.1.2 | 4.3.6 | 2026-11-22 | 20 | 0 | 1 |\n"


def test_the_table_has_a_row_for_each_cell_with_what_was_found_and_how_many_tests() -> None:
    _, lines, _ = table.parts(table.PAGE.read_text(encoding="utf-8"))
    assert [cell for line in lines for cell in CELLS if table.belongs(line, cell)] == CELLS
    for values in rows("".join(lines)):
        run_on, counts = values[len(COLUMNS) - 1], values[len(COLUMNS) :]
        assert run_on == NOT_RUN or [*map(str.isdecimal, counts)] == [True] * len(COUNTS)
        assert run_on == NOT_RUN or all(values)


def test_the_cells_are_the_ends_and_the_newest_with_one_thing_otherwise() -> None:
    for cell in CELLS:
        others = [value for value, newest in zip(cell, NEWEST, strict=True) if value != newest]
        assert cell in (OLDEST, YOUNGEST) or len(others) <= 1
    for axis, values in enumerate((table.PYTHON, table.CELERY, table.STORE, table.RABBIT)):
        assert {cell[axis] for cell in CELLS if cell != YOUNGEST} == {*values}


def test_a_cell_that_is_run_again_changes_its_own_row_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}{table.END}after\n")
    monkeypatch.setattr(table, "PAGE", page)
    valkey = NEWEST._replace(store="Valkey 9")
    for line in (ROW.replace("| 20 |", "| 19 |"), ROW):
        table.write(valkey, line)
        before, lines, after = table.parts(page.read_text())
        expected = [line if cell == valkey else table.untried(cell) for cell in CELLS]
        assert (before, lines, after) == ("before\n", expected, "after\n")


@pytest.mark.parametrize(
    ("found", "wanted", "is_one"),
    [
        ("3.11.7", "3.11", True),
        ("3.1", "3.11", False),
        ("3.11.7", "3.1", False),
        ("Redis 8.0.6", "Redis 8", True),
        ("Redis 8.0.6", "Valkey 8", False),
    ],
)
def test_a_version_is_known_by_how_it_begins(found: str, wanted: str, is_one: bool) -> None:
    assert table.is_of(found, wanted) is is_one
