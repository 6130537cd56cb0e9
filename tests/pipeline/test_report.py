"""The report's page: whole, closed off, and safe whatever things are called (NEW-7)."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as tree
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import pytest

pytest.importorskip("numpy")

HOSTILE = "<script>alert('x')</script>&\"'"


def figures(name: str = "shop.pay", **more: Any) -> dict[str, Any]:
    row = {"key": name, "dimension": "task", "standing": "suspicious", "deaths": 3, "expected": 0.2}
    row |= {"times": 15.0, "low": 2.5, "high": "inf", "p": 1e-4, "q": 0.001, "alive": 9, "causes": "oom 3"}
    row |= {"says": f"suspicious: {name}", "before_deaths": None, "before_expected": None, "change_p": None}
    row |= {"task": name, "since": "2026-01-06 14:05"}
    policy = {"max_crashes": 1}
    outcome = {"deaths": 4, "worker_deaths": 1, "lost_ms": 9000, "waiting": 2, "blocked": 0, "innocents": 1}
    totals = {"attempts": 12, "deaths": 3, "cleared": 1, "tasks": 1, "since": "2026-01-05", "until": None}
    totals |= {"died": 5, "workers": 2, "processes": 1, "blamed": 2, "compared": 7, "recovery_ms": 300.0}
    return {
        "window": {"since": "2026-01-05", "until": None},
        "as_of": f"as of {name}",
        "totals": totals,
        "days": [
            {"date": "2026-01-05", "workers": 2, "processes": 0, "recovery_ms": 300.0, "longest_ms": 900},
            {"date": None, "workers": 0, "processes": 1, "recovery_ms": None, "longest_ms": None},
        ],
        "causes": [
            {"date": "2026-01-05", "cause": name, "deaths": 2},
            {"date": "2026-01-07", "cause": "oom", "deaths": 1},
            {"date": None, "cause": "oom", "deaths": 1},
        ],
        "releases": [{"release": name, "first": "2026-01-06 14:05"}],
        "findings": [
            {**row, "command": f"celery -A proj poison list --filter task={name}", "changed": False}
        ],
        "cost": {
            "totals": {"runs": 4, "unknown": 1, "ms": 11_520_000, "again_ms": 7_200_000, "least_ms": 60_000},
            "days": [
                {"date": "2026-01-05", "cause": name, "ms": 7_200_000},
                {"date": "2026-01-05", "cause": "oom", "ms": 3_600_000},
                {"date": "2026-01-07", "cause": "oom", "ms": 720_000},
            ],
            "tasks": [
                {"task": name, "cause": "oom", "runs": 4, "unknown": 1}
                | {"ms": 9_000, "again_ms": 0, "least_ms": 9_000}
            ],
        },
        "grown": [{"says": f"3 deaths: {name} grew to 1.6 GiB"}],
        "blame": [row],
        "backtest": [{**outcome, "policy": policy, "says": "as it is"}],
        "recommended": {"policy": policy, "says": "as it is", "reasons": [name]},
        "left_out": [name],
        **more,
    }


def _empty() -> dict[str, Any]:
    totals = dict.fromkeys(figures()["totals"], 0) | {"since": None, "until": None, "recovery_ms": None}
    nothing: dict[str, Any] = {name: [] for name in figures()}
    window = {"since": None, "until": None}
    cost = dict.fromkeys(("runs", "unknown", "ms", "again_ms", "least_ms"), 0)
    nothing["cost"] = {"totals": cost, "days": [], "tasks": []}
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
    assert "table" in tags and not tags & {"script", "img", "iframe", "object", "a"}
    assert [dict(a)["href"] for tag, a in parser.found if tag == "link"] == ["data:,"]
    assert not re.search(r"https?://|@import|url\(", page)
    assert "default-src 'none'" in page


def _tree(page: str) -> tree.Element:
    """Return what is on a page, which must be well-formed."""
    return tree.fromstring(page[page.index("<main>") : page.index("</main>") + 7].replace("\x00", ""))


def test_the_page_is_well_formed_whatever_things_are_called() -> None:
    from celery_poison.pipeline.report import render

    for told, tables in ((figures(HOSTILE), 4), (figures("\u202e\x00" + "x" * 300), 4), (_empty(), 0)):
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


def _words(element: tree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def test_NEW_22_a_page_opens_with_how_many_died_and_what_stands_out(history: Path) -> None:
    from celery_poison.pipeline.blame import blame
    from celery_poison.pipeline.report import gather, render
    from tests.pipeline import tallied

    ask = tallied.history(history)
    told = gather(ask, blame(ask))
    page = _tree(render(told))
    standings = Counter(row["standing"] for row in told["findings"])
    assert [_words(each) for each in page.iter("h1")] == [
        f"{told['totals']['deaths']:,} deaths: {standings['guilty']} guilty,"
        f" {standings['suspicious']} suspicious"
    ]
    assert "unremarkable" not in standings and len([*page.iter("article")]) == len(told["findings"])
    for finding in page.iter("article"):
        assert _words(finding).count("celery -A proj poison") == 1
    by_day, by_cause = (sum(row["deaths"] for row in told[name]) for name in ("days", "causes"))
    totals = told["totals"]
    assert by_day == by_cause == totals["deaths"] == totals["workers"] + totals["processes"]


def _grew(task: str, at: str, **more: Any) -> str:
    """Return the evidence as a worker's black box gives it to the journal."""
    from celery_poison.causes import Evidence
    from celery_poison.extensions.black_box.evidence import GrowthEvidence

    grew = GrowthEvidence(grew_task=task, grew_at=at, grew_to_kb=1_677_722, grew_kb_s=87_891)
    return Evidence(**{"grown_kb": 5, **more}).having(grew).encode()


def test_NEW_19_the_page_says_whose_memory_grew_how_often_and_at_which_line() -> None:
    from celery_poison.pipeline.report import gather, render
    from tests.pipeline import tallied
    from tests.pipeline.entries import died

    line = "convert (/app/shop.py:63)"
    likely = _grew("shop.convert", line, oom_likely=True)
    of_worker = [  # each suspect's own growth differs; what grew by far the most is one and the same
        died(f"m{n}", f"t{n}", n, "shared", incident="i1", evidence=_grew("shop.convert", line, grown_kb=n))
        for n in range(3)
    ]
    alone = [died("n1", "t8", 8, evidence=likely), died("n2", "t9", 9, evidence=_grew(HOSTILE, "é"))]
    odd = ["{", '{"grew_to_kb": 9e999}', '{"grew_to_kb": -1}', '{"grew_to_kb": ' + "9" * 40 + "}", "x" * 9999]
    broken = [died(f"o{n}", f"u{n}", 20 + n, evidence=text) for n, text in enumerate(odd)]
    told = gather(tallied.entries([*of_worker, *alone, *broken]), [])
    assert next(row["says"] for row in told["grown"]) == (
        "2 deaths: Memory: shop.convert grew 90 MB/s to 1.6 GiB (shop.py:63) at most"
    ), "of one alone is known that it was out of memory"
    told = gather(tallied.entries([alone[0]]), [])
    assert [row["says"] for row in told["grown"]] == [
        "1 death: oom, likely: shop.convert grew 90 MB/s to 1.6 GiB (shop.py:63)"
    ]
    told = gather(tallied.entries([*of_worker, *alone, *broken]), [])
    assert "shop.convert grew 90 MB/s to 1.6 GiB (shop.py:63)" in _words(_tree(render(told)))


def test_NEW_22_deaths_that_are_counted_in_several_ways_are_told_with_the_reason() -> None:
    from celery_poison.pipeline.report import render

    words = _words(_tree(render(figures())))
    assert "3 deaths: 2 whole workers, 1 single process" in words
    assert "compared are 2 deaths: a message that died again counts once" in words
    assert "replayed are 4 deaths: a message that was not convicted yet dies again until it is" in words
    outcome = {**figures()["backtest"][0], "deaths": 2}
    fewer = _words(_tree(render(figures(backtest=[outcome]))))
    assert "replayed are 2 deaths: those of messages whose task id is known" in fewer


def test_NEW_28_the_page_says_what_deaths_cost_and_what_of_it_is_not_known() -> None:
    from celery_poison.pipeline.report import render

    page = _words(_tree(render(figures())))
    assert "4 runs were cut off, about 3 h 12 min of work thrown away" in page
    assert "about 2 h of it was done again: the journal has a later run of the same task id" in page
    assert "at least 9.0 s" in page, "all of it of dead workers"
    assert "of 1 of them the run time is not on record" in page
    assert "recorded run time thrown away a day, 3 h at most" in page
    assert "What deaths cost" not in _words(_tree(render(_empty())))


def test_NEW_28_work_is_counted_once_and_as_done_again_only_where_both_starts_are_on_record() -> None:
    from celery_poison.pipeline.report import gather
    from tests.pipeline import tallied
    from tests.pipeline.entries import died, ran

    def interrupted(id: str, token: str, s: float, **more: Any) -> dict[str, Any]:
        return {**died(id, token, s, **more), "event": "interrupted", "outcome": None, "pid": 7, **more}

    told = [
        *(died("a", "a1", 10, ms=4_000), died("a", "a2", 20, ms=5_000)),  # convicted at the second
        *(died("b", "b1", 30, ms=6_000, incident="i", cause="worker_lost"), ran("b", "b2", 50, ms=9_000)),
        *(died("c", "c1", 60, ms=None, pid=7), died("c", "c2", 61, ms=10**12)),
        *(interrupted("d", "d1", 70, cause="shutdown", ms=2_000), ran("d", "d2", 80)),
        interrupted("e", "e1", 90, cause="shutdown", ms=None),
        # None of these had begun.
        interrupted("f", "f1", 91, cause="shutdown", ms=None, pid=0),
        interrupted("g", "g1", 92, cause="not_reached"),
        *(died("h", "h1", 93, cause="receive"), died("j", "j1", 95, ms=None)),
        {**ran("i", "i1", 94), "event": "rolled_back"},
    ]
    cost = gather(tallied.entries(told), [])["cost"]
    week = 7 * 86_400_000
    sums = {"runs": 7, "unknown": 2, "ms": 17_000 + week, "again_ms": 12_000, "least_ms": 6_000}
    assert cost["totals"] == sums
    found = {(row["cause"], row["runs"], row["unknown"], row["ms"], row["again_ms"]) for row in cost["days"]}
    assert found == {
        ("signal:9", 4, 1, 9_000 + week, 4_000),
        ("worker_lost", 1, 0, 6_000, 6_000),
        ("shutdown", 2, 1, 2_000, 2_000),
    }
    assert [row["cause"] for row in cost["tasks"]] == ["signal:9", "worker_lost", "shutdown"]
    assert gather(tallied.entries([ran("a", "a1", 1)]), [])["cost"]["totals"]["runs"] == 0


def test_NEW_22_where_nothing_was_compared_the_page_says_so() -> None:
    from celery_poison.pipeline.report import render

    assert (
        "Nothing died" in (nothing := _words(_tree(render(_empty())))) and "Nothing was compared" in nothing
    )
    words = _words(_tree(render(figures(findings=[]))))
    assert "All 7 tasks, hosts and the like that were in a death are unremarkable" in words
    alone = _words(_tree(render(figures())))
    assert "6 other tasks, hosts and the like" in alone
    assert "Nothing was compared with the time before 2026-01-05: the lake has no entry of it." in alone
    row = {**figures()["blame"][0], "before_deaths": 3.0, "change_p": 0.5}
    assert "compared with the time before" in _words(_tree(render(figures(blame=[row]))))
    window = {"since": None, "until": None}
    assert "--since 7d does that" in _words(_tree(render(figures(window=window))))


def test_NEW_22_the_picture_has_a_bar_for_each_day_and_cause_and_a_mark_for_each_release() -> None:
    from celery_poison.pipeline.report import render

    page = _tree(render(figures()))
    bars, lines = ([*page.iter(name)] for name in ("rect", "line"))
    deaths, cost = bars[:2], bars[2:]
    assert [(each.get("x"), each.get("height")) for each in deaths] == [("0.1", "96.00"), ("2.1", "48.00")]
    assert [each.get("x1") for each in lines] == ["1.587"] * 2
    places = [(each.get("x"), each.get("height"), _words(each)) for each in cost]
    assert places == [
        ("0.1", "64.00", "2026-01-05: 2 h"),
        ("0.1", "32.00", "2026-01-05: 1 h"),
        ("2.1", "6.40", "2026-01-07: 12 min"),
    ]
    assert "shop.pay since 2026-01-06 14:05" in _words(lines[0])


@pytest.mark.parametrize(
    ("row", "typed"),
    [
        ({"dimension": "host", "key": "app-03"}, "list --filter 'worker=*@app-03/*'"),
        ({"dimension": "queue", "key": "a b"}, "list --filter 'queue='\"'\"'a b'\"'\"''"),
        ({"dimension": "payload", "key": "t 1-10 MB"}, "list --filter 'task=t payload_bytes>=1000000'"),
        ({"dimension": "payload", "key": "t under 1 kB"}, "list --filter task=t"),
        ({"dimension": "release", "key": "r"}, "list --since 2026-01-20T14:05+00:00"),
        (
            {"dimension": "task_release", "key": "t @ r"},
            "list --filter task=t --since 2026-01-20T14:05+00:00",
        ),
        ({"dimension": "time", "key": "2026-01-20"}, "list --since 2026-01-20"),
        (
            {"dimension": "time", "key": "2026-01-20 23:00 to 2026-01-21 05:00"},
            "list --between 2026-01-20T23:00+00:00 2026-01-21T05:00+00:00",
        ),
        (
            {"dimension": "fingerprint", "key": "f" * 16, "standing": "guilty"},
            f"block --fingerprint {'f' * 16} --task t --expires 7d",
        ),
    ],
)
def test_NEW_22_each_finding_has_a_command_that_the_command_line_takes(
    row: dict[str, Any], typed: str
) -> None:
    from celery_poison.cli.celery_command import poison
    from celery_poison.pipeline.report import command

    told = command({"standing": "suspicious", "task": "t", "since": "2026-01-20 14:05", **row})
    assert told == f"celery -A proj poison {typed}"
    name, *words = shlex.split(told)[4:]
    # Below its group, as it is typed: click keeps the names of --help as the first context has them.
    group = click.Context(poison, **poison.context_settings)
    verb = poison.get_command(group, name)
    assert verb is not None
    verb.make_context(name, words, parent=group)
