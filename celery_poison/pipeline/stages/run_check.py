"""``pipeline check``: what is in the lake, what of it cannot be read, and what never came into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from celery_poison.errors import PoisonError
from celery_poison.pipeline.lake import Lake, Reading
from celery_poison.pipeline.telling import tell

HELP = """Read every value of the lake once, and say what cannot be read and what is missing.

Exit status: 1 where something cannot be read.
"""


class LakeDamaged(PoisonError):
    """Something in the lake cannot be read."""


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> Reading:
    """Check the lake; raises LakeDamaged when something was left out."""
    reading = lake.check()
    if options.get("as_json"):
        told = {
            "rows": reading.rows,
            "left_out": [asdict(left) for left in reading.left_out],
            "gaps": [asdict(gap) for gap in reading.gaps],
        }
        click.echo(json.dumps(told, indent=2))
    else:
        click.echo(f"{reading.rows} entries")
        tell(reading)
    if reading.left_out:
        raise LakeDamaged(f"{len(reading.left_out)} things in {lake.root} were left out")
    return reading
