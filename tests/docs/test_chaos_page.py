"""docs/chaos.md lists the faults, what excuses what, and the options."""

from __future__ import annotations

import pytest

from tests.chaos.command import chaos
from tests.chaos.excuses import EXCUSES, Wrong
from tests.chaos.faults import EVERY_BROKER, EVERY_POOL, KINDS
from tests.chaos.report import HEAD
from tests.docs.pages import rows, section, text, words

PAGE = text("chaos.md")


def test_every_fault_is_told_with_the_fleets_that_have_it() -> None:
    told = {words(row[0])[0]: {*filter(None, row[2].split(", "))} for row in rows(section(PAGE, "Faults"))}
    without = {
        name: {*EVERY_BROKER, *EVERY_POOL} - {*kind.brokers, *kind.pools} for name, kind in KINDS.items()
    }
    assert told == without


def test_every_excuse_is_told() -> None:
    told = [(words(row[0]), words(row[1]), row[2]) for row in rows(section(PAGE, "Excuses"))]
    assert told == [([w.value for w in row.wrong], [*row.faults], row.why) for row in EXCUSES]


def test_everything_that_must_not_happen_is_told() -> None:
    told = [words(row[0])[0] for row in rows(section(PAGE, "What must be true"))]
    assert told == [wrong.value for wrong in Wrong]


def test_the_table_of_runs_has_the_columns_of_a_report() -> None:
    assert HEAD in section(PAGE, "Runs")


@pytest.mark.parametrize("option", [option.opts[0] for option in chaos.params])
def test_every_option_is_told(option: str) -> None:
    part = section(PAGE, "Options")
    assert f"\n- `{option}" in part or f"`{option}`" in part
