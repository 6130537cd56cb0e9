"""The report's page: whole, closed off, and safe whatever things are called (NEW-7)."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as tree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")

HOSTILE = "<script>alert('x')</script>&\"'"


def figures(name: str = "shop.pay", **more: Any) -> dict[str, Any]:
    row = {"key": name, "dimension": "task", "standing": "suspicious", "deaths": 3, "expected": 0.2}
    row |= {"times": 15.0, "low": 2.5, "high": "inf", "p": 1e-4, "q": 0.001, "alive": 9, "causes": "oom 3"}
    row |= {"says": f"suspicious: {name}", "before_deaths": None, "before_expected": None, "change_p": None}
    policy = {"max_crashes": 1}
    outcome = {"deaths": 4, "worker_deaths": 1, "lost_ms": 9000, "waiting": 2, "blocked": 0, "innocents": 1}
    totals = {"attempts": 12, "deaths": 3, "cleared": 1, "tasks": 1, "since": "2026-01-05", "until": None}
    return {
        "window": {"since": "2026-01-05", "until": None},
        "as_of": f"as of {name}",
        "totals": totals,
        "days": [
            {"date": "2026-01-05", "workers": 2, "processes": 0, "recovery_ms": 300.0, "longest_ms": 900},
            {"date": None, "workers": 0, "processes": 1, "recovery_ms": None, "longest_ms": None},
        ],
        "blame": [row],
        "anomalies": [row],
        "backtest": [{**outcome, "policy": policy, "says": "as it is"}],
        "recommended": {"policy": policy, "says": "as it is", "reasons": [name]},
        "left_out": [name],
        **more,
    }


def _empty() -> dict[str, Any]:
    totals = {"attempts": 0, "deaths": 0, "cleared": 0, "tasks": 0, "since": None, "until": None}
    nothing: dict[str, Any] = {name: [] for name in figures()}
    window = {"since": None, "until": None}
    return {**nothing, "totals": totals, "recommended": None, "window": window, "as_of": ""}


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_asks_nobody_and_runs_nothing() -> None:
    from celery_poison.pipeline.report import render

    page = render(figures(HOSTILE))
    parser = _Tags()
    parser.feed(page)
    tags = {tag for tag, _ in parser.found}
    assert "table" in tags and not tags & {"script", "img", "iframe", "object", "a", "svg"}
    assert [dict(a)["href"] for tag, a in parser.found if tag == "link"] == ["data:,"]
    assert not re.search(r"https?://|@import|url\(", page)
    assert "default-src 'none'" in page


def _tree(page: str) -> tree.Element:
    """Return what is on a page, which must be well-formed."""
    return tree.fromstring(page[page.index("<main>") : page.index("</main>") + 7].replace("\x00", ""))


def test_the_page_is_well_formed_whatever_things_are_called() -> None:
    from celery_poison.pipeline.report import render

    for told, tables in ((figures(HOSTILE), 5), (figures("\u202e\x00" + "x" * 300), 5), (_empty(), 1)):
        assert len([*_tree(render(told)).iter("table")]) == tables


def test_the_figures_are_of_the_window_and_can_be_read_as_json(history: Path) -> None:
    from celery_poison.pipeline.blame import blame
    from celery_poison.pipeline.report import gather, render
    from celery_poison.pipeline.window import Window
    from tests.pipeline import tallied

    ask = tallied.history(history)
    whole, last = (
        gather(ask, blame(ask, w), window=w) for w in (Window(), Window.of("2026-01-10", None, None))
    )
    assert json.loads(json.dumps(last)) == last
    assert 0 < last["totals"]["deaths"] < whole["totals"]["deaths"]
    assert min(row["date"] for row in last["days"]) >= "2026-01-10" > whole["days"][0]["date"]
    assert "compared with the time before" in render(last) and "app-05" in render(whole)
