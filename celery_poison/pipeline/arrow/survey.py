"""One look at the stored attempts, by tasks that read Parquet themselves, for all that only counts them.

Each task has some days of the history, all of them: so it can tell their percentiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from celery_poison.pipeline.arrow import counts, tasks
from celery_poison.pipeline.arrow.counts import Chunk, Piece
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.tables.attempts import ENDS

TABLES = ("tallies", "kin", "usual", "task_daily")
#: About so many rows are in a chunk. One that has more than the second, of one day, is too large for a task.
_ROWS, _MOST = 300_000, 5_000_000
#: With more rows in trouble, what is known of them is too much for a task.
_MOST_TROUBLES = 1_000_000


def survey(lake: Lake, into: str) -> dict[str, list[str]] | None:
    """Let tasks write :data:`TABLES` below ``into``: table -> files; None where that is for Spark."""
    if not tasks.can_do_it(lake):
        return None
    try:
        groups = list(_groups(lake))
    except (OSError, pa.ArrowException, ValueError):
        return None
    chunks = _chunks(groups)
    if not chunks or sum(group.rows for group in groups if group.end != "finished") > _MOST_TROUBLES:
        return None
    ids, fingerprints = _troubles(groups)
    work = partial(counts.count, into=into, ids=ids, fingerprints=fingerprints)
    made = tasks.done(lake.session, chunks, work)
    return {name: [each[name] for each in made] for name in TABLES}


class _Group:
    """A row group, and the first and last day in it."""

    def __init__(self, path: str, end: str, number: int, rows: int, span: tuple[date, date]) -> None:
        self.path, self.end, self.number, self.rows, self.span = path, end, number, rows, span


def _groups(lake: Lake) -> Iterator[_Group]:
    """Yield all row groups of the stored attempts.

    Raises:
        ValueError: one does not tell its days.
    """
    for end in ENDS:
        for path in sorted(Path(lake.table("attempts"), f"end={end}").glob("[!._]*.parquet")):
            told = pq.read_metadata(path)
            place = told.schema.to_arrow_schema().names.index("date")
            for number in range(told.num_row_groups):
                group = told.row_group(number)
                known = group.column(place).statistics
                if not group.num_rows:
                    continue
                if known is None or not known.has_min_max:
                    raise ValueError(path)
                yield _Group(str(path), end, number, group.num_rows, (known.min, known.max))


def _chunks(groups: Sequence[_Group]) -> list[Chunk]:
    """Cut the history into days that belong together; empty where a chunk would be too large."""
    cuts: list[date | None] = [None]
    rows, day = 0, date.max
    for group in sorted(groups, key=lambda group: group.span):
        if rows >= _ROWS and group.span[0] > day:
            cuts.append(group.span[0])
            rows = 0
        day = group.span[0] if not rows else day
        rows += group.rows
    chunks = []
    for since, until in zip(cuts, [*cuts[1:], None], strict=True):
        inside = [
            group
            for group in groups
            if (since is None or group.span[1] >= since) and (until is None or group.span[0] < until)
        ]
        if sum(group.rows for group in inside) > _MOST:
            return []
        chunks.append(Chunk(since, until, tuple(_pieces(inside))))
    return chunks if groups else []


def _pieces(groups: Sequence[_Group]) -> Iterator[Piece]:
    files: dict[tuple[str, str], list[int]] = {}
    for group in groups:
        files.setdefault((group.path, group.end), []).append(group.number)
    for (path, end), numbers in files.items():
        yield Piece(path, end, tuple(numbers))


def _troubles(groups: Sequence[_Group]) -> tuple[pa.Array, pa.Array]:
    """Return the task ids that were in trouble, and the fingerprints that were in a death."""
    ids, died = [pa.array([], pa.string())], [pa.array([], pa.string())]
    for piece in _pieces(groups):
        with pq.ParquetFile(piece.path, read_dictionary=["outcome"]) as file:
            if piece.end == "finished":
                ids += _lost(file, piece.groups)
                continue
            rows = file.read_row_groups(list(piece.groups), columns=["id", "fingerprint"], use_threads=False)
            ids += rows["id"].chunks
            died += rows["fingerprint"].chunks if piece.end == "crashed" else []
    return tuple(pa.chunked_array(each).unique().drop_null() for each in (ids, died))


def _lost(file: pq.ParquetFile, groups: Sequence[int]) -> Iterator[pa.Array]:
    for group in groups:
        told = file.read_row_group(group, columns=["outcome"], use_threads=False)["outcome"]
        if any("lost" in chunk.dictionary.to_pylist() for chunk in told.chunks):
            rows = file.read_row_group(group, columns=["id", "outcome"], use_threads=False)
            yield from rows.filter(pa.compute.equal(rows["outcome"].cast(pa.string()), "lost"))["id"].chunks
