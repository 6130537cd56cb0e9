"""What every command of the pipeline says in the same words."""

from __future__ import annotations

import click

from celery_poison.pipeline.batches import Gap
from celery_poison.pipeline.lake import Reading


def clean(text: str) -> str:
    """Return printable text; control characters, which names from the journal may hold, as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def told_gap(gap: Gap) -> str:
    """Return a gap in words."""
    many = "an unknown number of" if gap.missing is None else str(gap.missing)
    return f"GAP: {many} entries between {gap.after} and {gap.upto}: {gap.why}"


def tell(reading: Reading) -> None:
    """Say on stderr what was left out of a reading of the lake, what never came into it, and why."""
    for left in reading.left_out:
        rows = f" ({left.rows} entries)" if left.rows is not None else ""
        click.echo(f"left out: {clean(left.where)}{rows}: {clean(left.why)}", err=True)
    for gap in reading.gaps:
        click.echo(told_gap(gap), err=True)
