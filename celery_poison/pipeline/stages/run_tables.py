"""``pipeline tables``: what the journal says, as Parquet tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from celery_poison.pipeline.derived import TABLES, Derived
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.telling import tell

HELP = """Write attempts, incidents, messages, fingerprints and task_daily below LAKE/tables.

See docs/pipeline-tables.md. Each run makes them anew from what the lake has.
"""


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> Derived:
    """Make the tables; what the lake could not read is told on stderr."""
    derived = Derived(session, lake, lambda words: click.echo(words, err=True))
    derived.make()
    tell(derived.reading)
    where = {name: lake.table(name) for name in TABLES}
    click.echo(json.dumps(where, indent=2) if options.get("as_json") else "\n".join(where.values()))
    return derived
