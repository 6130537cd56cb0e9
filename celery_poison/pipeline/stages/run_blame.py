"""``pipeline blame``: what kills workers, the most suspicious first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from celery_poison.pipeline.blame import DIMENSIONS
from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.plain import plain_rows
from celery_poison.pipeline.telling import clean

OPTIONS = (
    click.Option(["--top"], type=click.IntRange(1), default=5, show_default=True, help="Of each kind."),
)


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> Derived:
    """Rank every fingerprint, task, form, size, host and release that was in a death."""
    derived = Derived(session, lake, lambda words: click.echo(words, err=True))
    derived.judge()
    told = plain_rows(derived["blame"].where(f"rank <= {options['top']}").orderBy("dimension", "rank", "key"))
    click.echo(json.dumps(told, indent=2) if options.get("as_json") else _words(told))
    return derived


def _words(told: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for dimension in DIMENSIONS:
        lines.append(dimension)
        for row in (row for row in told if row["dimension"] == dimension):
            between = f"kills {row['rate']:.3%} of its runs ({row['rate_low']:.3%} to {row['rate_high']:.3%})"
            counts = f"{row['failed']} deaths, {row['passed']} alive, {row['cleared']} cleared"
            lines.append(
                f"  {row['ochiai']:.4f}  {clean(row['key'])}: {row['standing']}; {counts}; {between}"
            )
    return "\n".join(lines)
