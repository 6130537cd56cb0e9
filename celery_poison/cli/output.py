"""Text for people and JSON for programs. Nothing that was stored reaches a terminal unescaped."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import IO, Any

import click
from kombu.utils import json as kombu_json

from celery_poison import causes
from celery_poison.model import MessageRecord
from celery_poison.quarantine.private_files import open_private
from celery_poison.text import clean, duration, short

#: Rows of a table, where nobody says how many; JSON has no such limit.
ROWS = 50
#: Messages that are done before a progress bar has been read.
_WORTH_A_BAR = 25


@contextmanager
def progress(length: int) -> Iterator[Callable[[], object]]:
    """Yield what counts a step: on a progress bar, if there is much to do and somebody to see it."""
    if length < _WORTH_A_BAR or not sys.stderr.isatty():
        yield lambda: None
        return
    bar: Any = click.progressbar(length=length, file=sys.stderr, show_pos=True)
    with bar:
        yield lambda: bar.update(1)


def print_json(value: Any) -> None:
    """Print a value as indented ASCII JSON; dates and bytes are marked as kombu marks them."""
    click.echo(kombu_json.dumps(value, indent=2))


def say(line: object, *, err: bool = False) -> None:
    """Print one line, cleaned."""
    click.echo(clean(line), err=err)


def wants_json() -> bool:
    """Return whether --json was typed."""
    return bool(click.get_current_context().params.get("as_json"))


def answer(value: Any, *lines: object, hint: str = "") -> None:
    """Print what a verb has done: JSON, or lines; the hint is for whoever reads those."""
    if wants_json():
        print_json(value)
        return
    for line in lines:
        say(line)
    if hint:
        say(hint, err=True)


def answer_table(
    found: Sequence[Any],
    headings: Sequence[str],
    row: Callable[[Any], Sequence[object]],
    empty: str,
    *,
    fit: bool = False,
) -> None:
    """Print records: JSON, or a row for each of them; ``empty`` goes to stderr where there are none."""
    if wants_json():
        print_json([each.as_dict() for each in found])
    elif found:
        print_table(headings, map(row, found), fit=fit)
    else:
        say(empty, err=True)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, fit: bool = False) -> None:
    """Print columns under their headings; cells are cleaned.

    Args:
        fit: cut what is long, so that the terminal has room for each line.
    """
    cells = [[clean(cell) for cell in row] for row in (headings, *rows)]
    over = sum(_widths(cells)) + 2 * (len(headings) - 1) - max(80, get_terminal_size().columns)
    for heading, end in _ELASTIC.items():
        if fit and over > 0 and heading in headings:
            over -= _shrink(cells, headings.index(heading), over, end)
    print_rows(cells)


#: Headings whose columns are cut where lines are too long, in this order, and at which end.
_ELASTIC = {"ARGUMENTS": "right", "TASK": "left"}
_NARROWEST = 12


def _shrink(cells: list[list[str]], column: int, by: int, end: str) -> int:
    """Make a column narrower, at most by so much; return by how much."""
    before = _widths(cells)[column]
    wanted = max(_NARROWEST, before - by)
    for row in cells:
        while _width(row[column]) > wanted:
            whole = row[column].strip("…")
            row[column] = f"{whole[:-1]}…" if end == "right" else f"…{whole[1:]}"
    return before - min(before, wanted)


def print_rows(rows: Iterable[Sequence[object]], indent: str = "") -> None:
    """Print aligned columns; cells are cleaned."""
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = _widths(cells)
    for row in cells:
        padded = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        click.echo(indent + "  ".join(padded).rstrip())


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(_width, column)) for column in zip(*cells, strict=True)]


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def answer_records(records: Sequence[MessageRecord], now: float, empty: str) -> None:
    """Print messages: JSON, or a table whose headings are names of filters.

    Args:
        now: the ledger's time, in seconds.
    """
    several = len({record.state for record in records}) > 1
    headings = ("ID", "TASK", "CAUSE", "DEATHS", "AGE", "ARGUMENTS", *(["STATE"] if several else []))
    ids = [record.id for record in records]
    names = [record.id if ids.count(record.id) == 1 else record.mid for record in records]

    def row(record: MessageRecord) -> Sequence[object]:
        name = record.id if ids.count(record.id) == 1 else record.mid
        since = record.quarantined_at or record.first_seen or record.last_seen
        age, cause = duration(now - since) if since else "-", causes.short(record.cause) or "-"
        cells = short(name, names), record.task, cause, record.crashes, age, record.arguments or "-"
        return (*cells, record.state) if several else cells

    answer_table(records, headings, row, empty, fit=True)


def private_file(ctx: click.Context, option: click.Parameter, path: str) -> IO[str]:
    """Open what an option names, to be written by this user alone; ``-`` is standard output.

    Raises:
        click.BadParameter: it is a link, no file, or somebody else's.
    """
    if path == "-":
        return sys.stdout
    try:
        file = os.fdopen(open_private(path, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror or error}") from None
    ctx.call_on_close(file.close)
    return file
