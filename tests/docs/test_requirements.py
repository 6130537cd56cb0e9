"""docs/requirements.md: the ids that tests carry, looked up."""

from __future__ import annotations

import re

from tests import split
from tests.docs.pages import ROOT, rows, text

PAGE = text("requirements.md")
IDS = [row[0] for row in rows(PAGE)]


def _tests() -> set[str]:
    """Return all tests, as `tests/room/test_file.py::test_name`."""
    return {
        f"{path.relative_to(ROOT).as_posix()}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(
            r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }


def _carried(tests: set[str] | None = None) -> set[str]:
    """Return the ids in the names of tests."""
    names = [test.partition("::")[2] for test in tests or _tests()]
    return {f"{kind}-{number}" for name in names for kind, number in re.findall(r"([A-Z]{2,}1?)_(\d+)", name)}


def test_every_id_in_the_name_of_a_test_is_on_the_page() -> None:
    kinds = {found.partition("-")[0] for found in IDS}
    assert (
        sorted(found for found in _carried() if found.partition("-")[0] in kinds and found not in IDS) == []
    )


def test_every_requirement_is_carried_by_a_test_or_named_as_one_that_is_not() -> None:
    _, _, rest = PAGE.partition("No test carries one of these ids so far:")
    named = set(re.findall(r"[A-Z]+-\d+", rest.partition("\n\n")[0]))
    assert len(IDS) == len(set(IDS)) > 60
    assert [found for found in IDS if found not in named and found not in _carried()] == []


def test_every_requirement_that_a_test_carries_is_in_the_first_run() -> None:
    first = _carried(_tests() - set(split.listed()) - set(split.listed(split.LONG)))
    assert sorted(_carried() - first) == [], "take one of its tests out of tests/rest.txt"


def test_every_line_of_the_rest_names_a_test_that_there_is() -> None:
    lines = [*split.listed(), *split.listed(split.LONG)]
    assert sorted({line.partition("[")[0] for line in lines} - _tests()) == []
