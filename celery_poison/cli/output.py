"""Text for people and JSON for programs. Nothing that was stored reaches a terminal unescaped."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import click
from kombu.utils import json as kombu_json

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on stdout.")


def clean(text: object) -> str:
    """Return one line of printable text; control characters become visible escapes."""
    told = str(text)
    if told.isprintable():
        return told
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in told)


def print_json(value: Any) -> None:
    """Print a value as indented ASCII JSON; dates and bytes are marked as kombu marks them."""
    click.echo(kombu_json.dumps(value, indent=2))


def print_json_line(value: Any) -> None:
    click.echo(kombu_json.dumps(value))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns under their headings; cells are cleaned."""
    print_rows([headings, *rows])


def print_rows(rows: Iterable[Sequence[object]], indent: str = "") -> None:
    """Print aligned columns; cells are cleaned."""
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        click.echo(indent + "  ".join(padded).rstrip())


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def when(seconds: float | None) -> str:
    """Return a moment as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def duration(seconds: float) -> str:
    """Return a span of time in its largest unit, e.g. ``12s``, ``5m``, ``3h``, ``2d``."""
    seconds = max(0.0, seconds)
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds / unit:.0f}{name}"
    return f"{seconds:.0f}s"


def count_of(number: int, noun: str) -> str:
    """Return e.g. ``1 message`` or ``2 messages``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
