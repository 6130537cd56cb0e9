"""``pipeline blame``: who is guilty, and who is suspected of killing workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from celery_poison.pipeline import window
from celery_poison.pipeline.blame import DIMENSIONS
from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.report.gather import as_json, top
from celery_poison.text import clean

HELP = """Say who is guilty of killing workers, who is suspected, and by how much.

Guilty is only what a trial proved. One model looks at all else together, so that a bad task does not colour
its host: it says how many deaths were to be expected, and how likely what happened is by chance.

\b
celery -A proj poison pipeline blame --lake /data/poison --since 7d          the last week against before
celery -A proj poison pipeline blame --lake /data/poison --cause oom         only deaths for want of memory
"""
OPTIONS = (
    click.Option(["--top"], type=click.IntRange(1), default=5, show_default=True, help="Of each kind."),
    click.Option(["--cause"], help="Only deaths of this cause, as `oom` or `signal:11`."),
    *window.OPTIONS,
)


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> Derived:
    """Judge every fingerprint, task, form, size, release, queue and host that was in a death; print it."""
    derived = Derived(session, lake, lambda words: click.echo(words, err=True))
    days = derived.window(options.get("since"), options.get("until"))
    told = top(derived.judge(days, options.get("cause")).blame, options["top"])
    if options.get("as_json"):
        click.echo(json.dumps([as_json(row) for row in told], indent=2))
    else:
        click.echo("\n".join([*filter(None, [days.says(), derived.as_of.says()]), _words(told)]))
    return derived


def _words(told: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for dimension in DIMENSIONS:
        rows = [row for row in told if row["dimension"] == dimension]
        lines += [dimension] if rows else []
        for row in rows:
            causes = f" ({row['causes']})" if row["causes"] else ""
            lines.append(f"  {clean(row['key'])}: {row['says']}{clean(causes)}")
    return "\n".join(lines) or "nothing died"
