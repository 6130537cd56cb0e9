"""``pipeline check``: what is in the lake, what of it cannot be read, and what never came into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from celery_poison.errors import PoisonError
from celery_poison.pipeline import sink
from celery_poison.pipeline.lake import Lake, LeftOut
from celery_poison.pipeline.telling import sentences

HELP = """Read every value of the lake's journal once, and say what cannot be read and what is missing.

Exit status: 1 where something cannot be read.
"""


class LakeDamaged(PoisonError):
    """Something in the lake cannot be read."""


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> None:
    """Check the journal of all apps; raises LakeDamaged when a file cannot be read."""
    delta = lake.journal.delta
    damaged = [LeftOut(path, why, rows) for path, rows, why in sink.check(session, lake.journal.uri, delta)]
    left_out = tuple(damaged) if damaged else lake.left_out()
    told: dict[str, Any] = {"version": lake.journal.version, "rows": delta.count()}
    if options.get("as_json"):
        told |= {"left_out": [asdict(e) for e in left_out], "gaps": [asdict(e) for e in lake.gaps()]}
        click.echo(json.dumps(told, indent=2))
    else:
        click.echo(f"{told['rows']} entries, version {told['version']}")
        for sentence in sentences(left_out, lake.gaps()):
            click.echo(sentence, err=True)
    if damaged:
        raise LakeDamaged(
            f"{len(damaged)} files of {lake.journal.uri} are damaged: bring them back from a copy; what Redis"
            " still holds can be ingested again after `pipeline maintain --restore VERSION`"
        )
