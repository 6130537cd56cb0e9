"""``pipeline report``: one HTML file to look at, and the same figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.report import gather, render
from celery_poison.pipeline.stages.run_backtest import Replayed, replayed

HELP = """Write one self-contained HTML page about everything that the lake tells.

Beside it the same figures as JSON; as Parquet they are below LAKE/tables.
"""
OPTIONS = (
    click.Option(
        ["--out"],
        type=click.Path(dir_okay=False, path_type=Path),
        default=Path("poison-report.html"),
        show_default=True,
        help="The page; its figures go beside it, as .json.",
    ),
)


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> Path:
    """Write the page and return where it is."""
    derived = Derived(session, lake, lambda words: click.echo(words, err=True))
    return write(derived, replayed(derived), options)


def write(derived: Derived, replay: Replayed, options: Mapping[str, Any]) -> Path:
    """Write the page about tables that are there already, and a back-test."""
    outcomes, best = replay
    told = gather(
        derived["attempts"],
        derived["incidents"],
        derived["blame"],
        counted=derived["tallies"],
        measures=derived["measures"],
        anomalies=derived["anomalies"].orderBy("times", ascending=False),
        outcomes=outcomes,
        recommended=best,
        left_out=derived.left_out,
    )
    page: Path = options["out"]
    figures = page.with_suffix(".json")
    page.write_text(render(told), encoding="utf-8")
    figures.write_text(json.dumps(told, indent=1), encoding="utf-8")
    where = {"page": str(page), "figures": str(figures)}
    click.echo(json.dumps(where) if options.get("as_json") else str(page))
    return page
