"""The report in a real browser: nothing is fetched, nothing is cut off, nothing of a name runs (NEW-7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery_poison.pipeline.report import render
from tests.flower.conftest import chromium as chromium
from tests.flower.conftest import pictures as pictures
from tests.pipeline.test_report import HOSTILE, figures

#: Numbers that are not wholly on their cell.
UNREADABLE = """
const wrong = [];
for (const cell of document.querySelectorAll('td')) {
  if (cell.scrollWidth > cell.clientWidth + 1) wrong.push('cut off: ' + cell.outerHTML);
}
return wrong;
"""
UNFOLD = "for (const fold of document.querySelectorAll('details')) fold.open = true"
FETCHED = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
WIDER = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("name", [HOSTILE, "\u202e" + "W" * 300], ids=["hostile", "long"])
def test_NEW_7_every_table_is_there_whole_and_nothing_is_fetched_or_run(
    name: str, chromium: Any, tmp_path: Path, pictures: Path
) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(figures(name)), encoding="utf-8")
    for width in (1280, 400):
        chromium.set_window_size(width, 900)
        chromium.get(page.as_uri())
        assert chromium.title == "What kills the workers"
        assert chromium.execute_script(FETCHED) == []
        chromium.execute_script(UNFOLD)
        assert chromium.execute_script(UNREADABLE) == []
        assert chromium.execute_script(WIDER) <= 0
        assert chromium.execute_script("return document.querySelectorAll('script, img').length") == 0
    chromium.save_screenshot(str(pictures / "report.png"))
