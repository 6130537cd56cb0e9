"""Text for people and JSON for programs. Nothing that was stored reaches a terminal unescaped."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from kombu.utils import json as kombu_json

from celery_poison.model import MessageRecord
from celery_poison.text import clean, duration, when

#: Rows of a table, where nobody says how many; JSON has no such limit.
ROWS = 50
#: Messages that are done before a progress bar has been read.
_WORTH_A_BAR = 25


def print_json(value: Any) -> None:
    """Print a value as indented ASCII JSON; dates and bytes are marked as kombu marks them."""
    click.echo(kombu_json.dumps(value, indent=2))


def say(line: object, *, err: bool = False) -> None:
    """Print one line, cleaned."""
    click.echo(clean(line), err=err)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns under their headings, or that there is nothing; cells are cleaned."""
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


def print_records(records: Sequence[MessageRecord], now: float) -> None:
    """Print messages as a table; ``now`` is the ledger's time in seconds."""
    headings = ("ID", "TASK", "QUEUE", "STATE", "CAUSE", "DEATHS", "FAILURES", "SINCE", "AGE")
    if records:
        print_table(headings, (_row(record, now) for record in records))
    else:
        click.echo("nothing", err=True)


def _row(record: MessageRecord, now: float) -> Sequence[object]:
    since = record.quarantined_at or record.first_seen or record.last_seen
    counts = record.cause or "-", record.crashes, record.failures
    age = duration(now - since) if since else "-"
    return (record.id, record.task, record.queue, record.state, *counts, when(since), age)


@contextmanager
def progress(length: int) -> Iterator[Callable[[], object]]:
    """Yield what counts a step: on a progress bar, if there is much to do and somebody to see it."""
    if length < _WORTH_A_BAR or not sys.stderr.isatty():
        yield lambda: None
        return
    bar: Any = click.progressbar(length=length, file=sys.stderr, show_pos=True)
    with bar:
        yield lambda: bar.update(1)
