"""Text for people and JSON for programs. Nothing that was stored reaches a terminal unescaped."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import click
from kombu.utils import json as kombu_json

from celery_poison.text import clean as clean
from celery_poison.text import count_of as count_of
from celery_poison.text import duration as duration
from celery_poison.text import when as when

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on stdout.")


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
