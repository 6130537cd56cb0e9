"""What the ingest's own reading, parsing and writing cost without Spark: no ingest can be quicker."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from celery_poison.ledger.keys import Keys
from celery_poison.pipeline.ingest.stream import Stream, ranges
from celery_poison.pipeline.sink import write


def stages(
    url: str, rows: int, processes: int, redis_cpu: Callable[[], float]
) -> Iterator[tuple[str, float, float, float]]:
    """Yield for each stage its name, rows/s, and µs per row of our processors and of Redis'."""
    stream = Stream(url, Keys().journal)
    parts = ranges("0-0", stream.tip().id, stream.first_after("0-0"), processes)
    for name, work in (("read and parsed", _parse), ("and written", _write)):
        with tempfile.TemporaryDirectory() as place, multiprocessing.Pool(processes) as pool:
            arguments = [(url, *part, place) for part in parts]
            before, begin = redis_cpu(), time.perf_counter()
            done: list[tuple[int, float]] = pool.starmap(work, arguments, chunksize=1)
            seconds = time.perf_counter() - begin
        if sum(count for count, _ in done) != rows:
            raise SystemExit(f"{name}: {sum(count for count, _ in done)} of {rows} entries")
        ours = sum(used for _, used in done)
        yield name, rows / seconds, ours / rows * 1e6, (redis_cpu() - before) / rows * 1e6


def _chunks(url: str, after: str, upto: str) -> Iterator[Any]:
    return Stream(url, Keys().journal).chunks(after, upto)


def _parse(url: str, after: str, upto: str, _place: str) -> tuple[int, float]:
    begin = time.process_time()
    return sum(rows.num_rows for rows in _chunks(url, after, upto)), time.process_time() - begin


def _write(url: str, after: str, upto: str, place: str) -> tuple[int, float]:
    begin = time.process_time()
    files = list(write(_chunks(url, after, upto), place, ("date", "healthy")))
    return sum(file.rows for file in files), time.process_time() - begin
