"""``pipeline report``: one HTML file to look at, and the same figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from celery_poison.pipeline import window
from celery_poison.pipeline.derived import Derived, Judgement
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.report import gather, render
from celery_poison.pipeline.stages.run_backtest import Replayed, replayed

HELP = """Write one self-contained HTML page about what the lake tells, of all its days or of some.

Beside it the same figures as JSON.
"""
OPTIONS = (
    click.Option(
        ["--out"],
        type=click.Path(dir_okay=False, path_type=Path),
        default=Path("poison-report.html"),
        show_default=True,
        help="The page; its figures go beside it, as .json.",
    ),
    *window.OPTIONS,
)


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> Path:
    """Write the page and return where it is."""
    derived = Derived(session, lake, lambda words: click.echo(words, err=True))
    judged = derived.judge(derived.window(options.get("since"), options.get("until")))
    return write(derived, judged, replayed(derived, options), options)


def write(derived: Derived, judged: Judgement, replay: Replayed, options: Mapping[str, Any]) -> Path:
    """Write the page about what was judged, and a back-test, of the same days."""
    outcomes, best, _ = replay
    told = gather(
        derived.ask,
        judged.blame,
        judged.anomalies,
        window=judged.window,
        outcomes=outcomes,
        recommended=best,
        as_of=derived.as_of.says(),
        left_out=derived.left_out,
    )
    page: Path = options["out"]
    figures = page.with_suffix(".json")
    page.write_text(render(told), encoding="utf-8")
    figures.write_text(json.dumps(told, indent=1), encoding="utf-8")
    where = {"page": str(page), "figures": str(figures)}
    click.echo(json.dumps(where) if options.get("as_json") else str(page))
    return page
