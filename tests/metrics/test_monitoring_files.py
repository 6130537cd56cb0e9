"""The dashboard, the alerts and docs/monitoring.md, held against what is exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.core import HistogramMetricFamily

from celery_poison.metrics.families import FAMILIES, HEALTH
from celery_poison.metrics.family import PREFIX
from tests.docs.pages import ROOT, rows, section, text, words

FILES = ROOT / "examples" / "monitoring"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FILES / "prometheus-rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((FILES / "grafana-dashboard.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
#: Every scraped series bears these two beside its own.
SCRAPED = {"instance", "job"}


def _exported() -> dict[str, set[str]]:
    """Return sample name -> labels."""
    found = {PREFIX + health.name: set[str]() for health in HEALTH}
    for family in FAMILIES:
        name = PREFIX + family.name
        if family.kind is HistogramMetricFamily:
            found |= {f"{name}_bucket": {"le"}, f"{name}_sum": set(), f"{name}_count": set()}
        else:
            found[name] = set(family.labels)
    return found


EXPORTED = _exported()


def _expressions() -> Iterator[Any]:
    for rule in RULES:
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in PANELS:
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")


def _parts(expression: Any) -> Iterator[Any]:
    found: list[Any] = []
    # Of the walk it is said whether it goes on.
    promql.walk(expression, lambda part: found.append(part) or True)
    yield from found


@pytest.mark.parametrize("text", [*_expressions()])
def test_an_expression_parses_and_asks_only_for_what_is_exported(text: str) -> None:
    expression = promql.parse(text.replace("$__rate_interval", "1m"))
    asked: set[str] = set()
    for part in _parts(expression):
        if isinstance(part, promql.VectorSelector):
            asked.add(part.name)
            assert part.name in EXPORTED, part.name
            assert {m.name for m in part.matchers.matchers} <= EXPORTED[part.name] | SCRAPED
    assert asked == set(re.findall(r"celery_poison_\w+", text)) != set()
    labels = set().union(*(EXPORTED[name] for name in asked)) | SCRAPED
    for part in _parts(expression):
        if isinstance(part, promql.AggregateExpr) and part.modifier:
            assert set(part.modifier.labels) <= labels


def test_the_parser_refuses_what_Prometheus_refuses() -> None:
    for wrong in ("rate(celery_poison_up)", "sum by (", "celery_poison_up{"):
        with pytest.raises(ValueError):
            promql.parse(wrong)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_with_labels_that_it_has(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"CeleryPoison[A-Za-z]+", rule["alert"])
    assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    kept = re.search(r"\bsum by \(([\w, ]+)\)", rule["expr"])
    labels = set(kept.group(1).split(", ")) if kept else set()
    told = "".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", told)) <= labels
    assert set(re.findall(r"\{\{ \$(\w+)", told)) <= {"value", "labels"}


def test_no_two_alerts_and_no_two_panels_share_a_name() -> None:
    for names in ([rule["alert"] for rule in RULES], [panel["title"] for panel in PANELS]):
        assert len(names) == len(set(names))
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_lies_on_the_grid_and_names_its_series_by_labels_they_have(panel: dict[str, Any]) -> None:
    place = panel["gridPos"]
    assert place["x"] + place["w"] <= 24
    for other in PANELS:
        assert other is panel or not _overlap(place, other["gridPos"]), other["title"]
    assert panel["datasource"]["uid"] == "${datasource}"
    for target in panel["targets"]:
        asked = re.findall(r"celery_poison_\w+", target["expr"])
        labels = set().union(*(EXPORTED[name] for name in asked))
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def _overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
    above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
    return not (beside or above)


def test_every_metric_is_shown_or_watched() -> None:
    used = {name for param in _expressions() for name in re.findall(r"celery_poison_\w+", param.values[0])}
    used = {name.removesuffix("_bucket") for name in used}
    # These tell about the exporter; the others about the ledger.
    exporter = {"snapshot_seconds", "snapshot_age_seconds", "snapshot_errors_total", "journal_entries"}
    assert {PREFIX + family.name for family in (*FAMILIES, *HEALTH)} - used == {PREFIX + n for n in exporter}


def test_the_page_tells_every_metric_with_its_kind_and_labels() -> None:
    told = {
        words(name)[0]: (kind, words(labels))
        for name, kind, labels, _ in rows(section(text("monitoring.md"), "Metrics"))
    }
    real = {PREFIX + f.name: (f.metric().type, [*f.labels]) for f in (*FAMILIES, *HEALTH)}
    assert told == real


def test_the_page_tells_every_alert() -> None:
    told = [words(row[0])[0] for row in rows(section(text("monitoring.md"), "Dashboard and alerts"))]
    assert told == [rule["alert"] for rule in RULES]
