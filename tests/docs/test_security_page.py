"""What SECURITY.md promises is shown by tests that exist."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, rows, section, words

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_each_promise_names_what_shows_it_and_that_exists() -> None:
    promises = rows(section(PAGE, "What holds, for whom"))
    assert len(promises) > 10
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
    }
    for row in promises:
        shown_by = words(row[2])
        assert shown_by, f"{row[1]}: nothing shows it"
        for name in shown_by:
            assert name in defined or (name.endswith(".py") and (ROOT / name).is_file()), name


def test_each_who_has_a_promise() -> None:
    who = {
        row[0].strip("*").partition("**")[0] for row in rows(section(PAGE, "What holds, for whom")) if row[0]
    }
    assert {"a publisher", "a visitor", "another user of Redis", "a file", "a shell on the host"} <= who
