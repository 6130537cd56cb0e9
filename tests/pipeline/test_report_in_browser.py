"""The report in a real browser: nothing is fetched, nothing is cut off, nothing of a name runs (NEW-7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery_poison.pipeline.report.page import render
from tests.flower.conftest import chromium as chromium
from tests.flower.conftest import pictures as pictures
from tests.pipeline.test_report import HOSTILE, figures

#: Every word of a picture that is not wholly inside it, and every two words of one that overlap.
UNREADABLE = """
const wrong = [];
for (const svg of document.querySelectorAll('svg')) {
  const area = svg.viewBox.baseVal, name = svg.getAttribute('aria-label');
  const words = [...svg.querySelectorAll('text')].map((text) => [text.textContent, text.getBBox()]);
  for (const [text, box] of words)
    if (box.x < 0 || box.y < 0 || box.x + box.width > area.width || box.y + box.height > area.height)
      wrong.push(name + ': cut off: ' + text);
  words.forEach(([one, a], n) => words.slice(n + 1).forEach(([two, b]) => {
    if (a.x < b.x + b.width && b.x < a.x + a.width && a.y + 2 < b.y + b.height && b.y + 2 < a.y + a.height)
      wrong.push(name + ': ' + one + ' over ' + two);
  }));
}
return wrong;
"""
FETCHED = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
PICTURES = "return [...document.querySelectorAll('svg')].map((svg) => svg.getAttribute('aria-label'))"
WIDER = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("name", [HOSTILE, "\u202e" + "W" * 300], ids=["hostile", "long"])
def test_NEW_7_every_picture_is_there_whole_and_nothing_is_fetched_or_run(
    name: str, chromium: Any, tmp_path: Path, pictures: Path
) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(figures(name)), encoding="utf-8")
    for width in (1280, 420):
        chromium.set_window_size(width, 900)
        chromium.get(page.as_uri())
        assert chromium.title == "What kills the workers"
        assert chromium.execute_script(FETCHED) == []
        assert len(chromium.execute_script(PICTURES)) >= 5
        assert chromium.execute_script(UNREADABLE) == []
        assert chromium.execute_script(WIDER) <= 0
        assert chromium.execute_script("return document.querySelectorAll('script, img').length") == 0
    chromium.save_screenshot(str(pictures / "report.png"))
