"""``pipeline tables``: what the journal says, as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from celery_poison.pipeline.derived import STORED, Derived
from celery_poison.pipeline.lake import Lake

HELP = """Bring the tables below LAKE/tables up to the end of the lake's journal.

See docs/pipeline-tables.md. Only what is new in the journal is read again, and what it concerns.
"""


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> Derived:
    """Make the tables; what the lake could not read is told on stderr."""
    derived = Derived(session, lake, lambda words: click.echo(words, err=True))
    derived.make()
    for sentence in derived.left_out:
        click.echo(sentence, err=True)
    where = {name: lake.table(name).uri for name in STORED}
    as_of = {"version": derived.as_of.version, "upto": derived.as_of.upto}
    words = [f"as of version {as_of['version']} of the journal, up to {as_of['upto']}", *where.values()]
    click.echo(
        json.dumps({**as_of, "tables": where}, indent=2) if options.get("as_json") else "\n".join(words)
    )
    return derived
