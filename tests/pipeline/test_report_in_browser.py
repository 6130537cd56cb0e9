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
#: Words whose contrast with what is behind them is below 4.5, and that contrast (WCAG 2, AA).
FAINT = """
const parts = (colour) => { const [r, g, b, a = 1] = colour.match(/[0-9.]+/g).map(Number);
  return [r, g, b, a] };
const over = ([r, g, b, a], back) => [r, g, b].map((part, n) => part * a + back[n] * (1 - a));
const light = (colour) => colour.map((part) => part / 255)
  .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  .reduce((sum, part, n) => sum + part * [0.2126, 0.7152, 0.0722][n], 0);
const probe = document.createElement('div');
probe.style.background = 'Canvas';
document.body.append(probe);
const canvas = parts(getComputedStyle(probe).backgroundColor).slice(0, 3);
probe.remove();
const faint = [];
for (const each of document.querySelectorAll('body *')) {
  const words = [...each.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
  if (!words.length || each.closest('svg')) continue;
  const chain = [];
  for (let at = each; at && at !== document.body; at = at.parentElement) chain.unshift(getComputedStyle(at));
  const back = chain.reduce((below, style) => over(parts(style.backgroundColor), below), canvas);
  const [r, g, b, a] = parts(getComputedStyle(each).color);
  const shown = over([r, g, b, chain.reduce((left, style) => left * style.opacity, a)], back);
  const [high, low] = [light(shown), light(back)].sort((one, other) => other - one);
  const contrast = (high + 0.05) / (low + 0.05);
  if (contrast < 4.5) faint.push(`${contrast.toFixed(2)}: ${words[0].data.slice(0, 40)}`);
}
return faint;
"""


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


@pytest.mark.matrix
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_NEW_7_the_page_fits_and_its_words_stand_out_in_light_and_dark(
    scheme: str, chromium: Any, tmp_path: Path, pictures: Path
) -> None:
    page = tmp_path / "report.html"
    row = figures()["findings"][0]
    standings = ("guilty", "suspicious", "unremarkable")
    found = [{**row, "standing": each} for each in standings]
    page.write_text(render(figures(findings=found, blame=found)), encoding="utf-8")
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        for width in (1200, 400):
            size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
            chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            chromium.get(page.as_uri())
            asked = f"return [innerWidth, matchMedia('(prefers-color-scheme: {scheme})').matches]"
            assert chromium.execute_script(asked) == [width, True]
            chromium.execute_script(UNFOLD)
            assert chromium.execute_script(WIDER) <= 0
            assert chromium.execute_script(FAINT) == []
            chromium.save_screenshot(str(pictures / f"report-{scheme}-{width}.png"))
    finally:
        chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
