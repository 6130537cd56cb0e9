"""benchmarks/README.md explains the scenarios of the program whose figures docs/comparison.md holds."""

from __future__ import annotations

import sys

import pytest

from tests.docs.pages import ROOT, rows, section, words

sys.path.insert(0, str(ROOT / "benchmarks"))

from comparison import SCENARIOS, parser
from comparison_apps import SETUPS


def test_the_page_explains_every_scenario_of_the_program_and_no_other() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    explained = [words(row[0]) for row in rows(section(page, "comparison.py"))]
    assert explained == [[name] for name in SCENARIOS]


def test_the_program_explains_its_scenarios_and_columns() -> None:
    explained = parser().format_help()
    assert [name for name in (*SCENARIOS, *SETUPS) if name not in explained] == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_can_be_chosen_and_has_known_columns(name: str) -> None:
    assert parser().parse_args([name, "--setup", "guarded"]).scenario == [name]
    assert set(SCENARIOS[name][1]) <= set(SETUPS)


def test_what_is_no_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["bystander"])
    assert "delivery-limit" in capsys.readouterr().err
