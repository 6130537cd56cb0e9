"""Text for people and JSON for programs. Nothing that was stored reaches a terminal unescaped."""

from __future__ import annotations

import os
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import IO, Any

import click
from kombu.utils import json as kombu_json

from celery_poison import causes
from celery_poison.basics.text import clean, duration, short, size
from celery_poison.causes import place_in
from celery_poison.keep.private_files import open_private
from celery_poison.model import MessageRecord
from celery_poison.states import State

#: Rows of a table, where no number is given; JSON has no such limit.
ROWS = 50
#: Messages that are done before a progress bar has been read.
_WORTH_A_BAR = 25


@contextmanager
def progress(length: int) -> Iterator[Callable[[], object]]:
    """Yield a function that counts a step: on a progress bar, if there are many and a terminal shows it."""
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
    """Print what a verb has done: JSON, or lines; the hint is for a person, who reads those."""
    if wants_json():
        print_json(value)
        return
    for line in lines:
        say(line)
    if hint:
        say(hint, err=True)


def answer_table(
    records: Sequence[Any],
    headings: Sequence[str],
    row: Callable[[Any], Sequence[object]],
    empty: str,
    *,
    fit: bool = False,
    title: str = "",
    hint: str = "",
) -> None:
    """Print records: JSON, or a row for each of them; ``empty`` goes to stderr where there are none.

    Args:
        title: one line above the table: what was found. It goes to stderr, so that a pipe gets the table.
        hint: what to type next; goes to stderr, too, below the table.
    """
    if wants_json():
        print_json([each.as_dict() for each in records])
        return
    if not records:
        say(empty, err=True)
        return
    if title:
        say(title, err=True)
    print_table(headings, map(row, records), fit=fit)
    if hint:
        say(hint, err=True)


def terminal_width() -> int:
    """Return how many columns a line may have: those of the terminal, 80 at least."""
    return max(80, get_terminal_size().columns)


def is_terminal() -> bool:
    """Return whether a person reads what is printed."""
    return sys.stdout.isatty()


def print_wrapped(text: str, head: str, indent: int) -> None:
    """Print a paragraph that fits the terminal, beside what stands before its first line.

    Where there is no terminal, it stays one line, as ``grep`` wants it.

    Args:
        text: is cleaned.
        head: a ready text, perhaps coloured, that takes up ``indent`` columns.
        indent: columns by which each line is moved.
    """
    lines = [clean(text)]
    if is_terminal():
        lines = textwrap.wrap(lines[0], terminal_width() - indent, break_on_hyphens=False) or [""]
    for number, line in enumerate(lines):
        click.echo(f"{' ' * indent if number else head}{line}".rstrip())


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, fit: bool = False) -> None:
    """Print columns under their headings; cells are cleaned.

    Args:
        fit: leave out the least of the columns and cut what is long, so that each line fits the terminal.
            Where there is no terminal, everything is printed, as ``grep`` wants it.
    """
    cells = [[clean(cell) for cell in row] for row in (headings, *rows)]
    fit = fit and is_terminal()
    for heading in _SPARED if fit else ():
        if _excess(cells) > _spare(cells) and heading in cells[0]:
            column = cells[0].index(heading)
            cells = [[*row[:column], *row[column + 1 :]] for row in cells]
    for heading, end in _ELASTIC.items():
        over = _excess(cells)
        if fit and over > 0 and heading in cells[0]:
            _shrink(cells, cells[0].index(heading), over, end)
    print_rows(cells)


#: Columns that are left out where lines are too long, in this order: JSON has them all the same.
_SPARED = ("POOL", "SIZE", "STARTED", "NOTICED", "TOOK", "OLDEST", "NOTICED BY", "PID")
#: Headings whose columns are cut where lines are too long still, in this order, and at which end.
_ELASTIC = {"ARGUMENTS": "right", "FINGERPRINT": "right", "TASK": "left"}
_ELASTIC |= dict.fromkeys(("WORKER", "QUEUES", "PUT BACK", "WHERE", "CAUSE"), "right")
#: Columns to which one is cut at most; and down to which it is cut rather than that another is left out.
_NARROWEST, _READABLE = 12, 16


def _spare(cells: Sequence[Sequence[str]]) -> int:
    """Return by how many columns a table can be cut and still be read."""
    widths = zip(cells[0], _widths(cells), strict=True)
    return sum(max(0, width - _READABLE) for heading, width in widths if heading in _ELASTIC)


def _excess(cells: Sequence[Sequence[str]]) -> int:
    """Return by how many columns the lines of a table are too long."""
    return sum(_widths(cells)) + 2 * (len(cells[0]) - 1) - terminal_width()


def _shrink(cells: list[list[str]], column: int, by: int, end: str) -> None:
    """Make a column narrower, at most by so much."""
    before = _widths(cells)[column]
    wanted = max(_NARROWEST, before - by)
    for row in cells:
        while _width(row[column]) > wanted:
            whole = row[column].strip("…")
            row[column] = f"{whole[:-1]}…" if end == "right" else f"…{whole[1:]}"


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


def answer_records(
    records: Sequence[MessageRecord], now: float, empty: str, *, title: str = "", hint: str = ""
) -> None:
    """Print messages: JSON, or a table whose headings are names of filters.

    Args:
        now: the ledger's time, in seconds.
        title, hint: the line above the table, and the one below it.
    """
    several = len({record.state for record in records}) > 1
    # Of what is not kept no arguments are stored: where it is at this moment matters more.
    is_live = all(record.state in (State.DLNG, State.TBDL) for record in records)
    own = ("DEATHS", "AGE", "WHERE") if is_live else ("WHERE", "SIZE", "AGE", "ARGUMENTS")
    headings = ("ID", "TASK", "CAUSE", *own, *(["STATE"] if several else []))
    ids = [record.id for record in records]
    names = [record.id if ids.count(record.id) == 1 else record.mid for record in records]

    def row(record: MessageRecord) -> Sequence[object]:
        name = record.id if ids.count(record.id) == 1 else record.mid
        since = record.quarantined_at or record.first_seen or record.last_seen
        age, cause = duration(now - since) if since else "-", causes.short(record.cause) or "-"
        where, bytes_ = place_in(record.evidence.source), size(record.payload_bytes)
        live = (record.crashes, age, record.reason or "-")
        kept = (where or "-", bytes_, age, record.arguments or "-")
        cells = (short(name, names), record.task, cause, *(live if is_live else kept))
        return (*cells, record.state) if several else cells

    answer_table(records, headings, row, empty, fit=True, title=title, hint=hint)


def private_file(ctx: click.Context, option: click.Parameter, path: str) -> IO[str]:
    """Open what an option names, to be written by this user alone; ``-`` is standard output.

    Raises:
        click.BadParameter: it is a link, no file, or another user's.
    """
    if path == "-":
        return sys.stdout
    try:
        file = os.fdopen(open_private(path, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror or error}") from None
    ctx.call_on_close(file.close)
    return file
