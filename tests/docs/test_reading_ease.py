"""The pages to learn from and to work by are easy to read, as far as a formula can say that."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.docs.pages import DOCS

if importlib.util.find_spec("textstat") is None and not os.environ.get("CI"):
    pytest.skip("no textstat: pip install '.[dev]'", allow_module_level=True)

from tests.docs import reading_ease


@pytest.mark.parametrize("page", reading_ease.held(), ids=lambda page: page.name)
def test_a_page_to_learn_from_or_to_work_by_is_easy_to_read(page: Path) -> None:
    assert reading_ease.ease(page) >= reading_ease.LEAST, "python -m tests.docs.reading_ease"


def test_long_words_and_long_sentences_are_harder_to_read(tmp_path: Path) -> None:
    easy, hard = tmp_path / "easy.md", tmp_path / "hard.md"
    easy.write_text("The worker dies. Its message comes back. A person reads the log.\n")
    hard.write_text(
        "Notwithstanding intermittent unavailability, redelivery necessitates reconciliation of states.\n"
    )
    assert reading_ease.ease(hard) < 30 < 80 < reading_ease.ease(easy)


def test_the_tabs_to_learn_from_and_to_work_by_have_pages() -> None:
    held = reading_ease.held()
    assert DOCS / "tutorial.md" in held and DOCS / "howto" / "playbook.md" in held and len(held) > 20


def test_the_pages_for_users_stay_short() -> None:
    pages = reading_ease.for_users()
    assert DOCS / "cli.md" in pages and DOCS / "verdict.md" not in pages
    assert sum(map(reading_ease.length, pages)) <= reading_ease.MOST, "python -m tests.docs.reading_ease"
