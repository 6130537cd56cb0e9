"""``pipeline all``: from the journal to the report, in one Spark session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.session import suit
from celery_poison.pipeline.stages import run_ingest, run_report
from celery_poison.pipeline.stages.run_backtest import replayed
from celery_poison.pipeline.together import together

HELP = """Ingest what is new, bring all tables up to date, and write the report: once, as from cron.

Nothing is published: that is `pipeline publish`.
"""
_OURS = ("trim_after", "compact", "max_rows", "moved")
OPTIONS = (*(each for each in run_ingest.OPTIONS if each.name in _OURS), *run_report.OPTIONS)


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> Path:
    """Run every stage; what the lake could not read is told on stderr, and in the report."""
    done = run_ingest.ingest(session, lake, options)
    click.echo(run_ingest.summary(done), err=bool(options.get("as_json")))  # the report's is all the JSON
    suit(session, lake.journal.delta.count(), [text.partition("=")[0] for text in options.get("conf") or ()])
    derived = Derived(session, lake, lambda words: click.echo(words, err=True))
    return learn(derived, options)


def learn(derived: Derived, options: Mapping[str, Any]) -> Path:
    """Bring all tables up to date, and write the report."""
    derived.make()
    days = derived.window(options.get("since"), options.get("until"))
    judged, replay = together(lambda: derived.judge(days), lambda: replayed(derived, options))
    for sentence in derived.left_out:
        click.echo(sentence, err=True)
    return run_report.write(derived, judged, replay, options)
