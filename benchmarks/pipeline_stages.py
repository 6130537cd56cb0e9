"""How long each stage of `pipeline all` takes after the ingest: see pipeline.py, which runs this."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from celery_poison.cli import pipeline_commands as commands
from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.lake import Lake, Table
from celery_poison.pipeline.schema import LAKE
from celery_poison.pipeline.sink import Written

ROOT = Path(__file__).resolve().parents[1]
#: The worst of what `tables` is asked to do, in one sentence of SQL, for comparison.
SQL = {
    "task_daily": "select date, task, count(*), quantile_cont(runtime_ms, [0.5, 0.95]) from j"
    " where event in ('finished', 'crashed', 'interrupted', 'rolled_back') group by all",
    "messages": "select mid, arg_max(state, (j.at, j.seq)), min(j.at), max(j.at), count(distinct token),"
    " sum(runtime_ms) from j where mid is not null group by mid",
}


@dataclass(frozen=True)
class Whole:
    """Seconds on the clock, and of processors, Java's compiler and garbage collector among them.

    ``stages`` are seconds on the clock of each; some run at the same time, so that they add up to more.
    """

    seconds: float
    cpu: float
    stages: dict[str, float]


def generate(attempts: int, troubles: float, place: Path, days: int = 0) -> None:
    """Write a generated lake, in a process of its own so that its memory is not counted here."""
    command = [sys.executable, "-m", "examples.histories", str(place), "--attempts", str(attempts)]
    command += ["--troubles", str(troubles)]
    command += ["--days", str(days)] if days else []
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def measure(session: Any, root: Path, cpu: Callable[[], float]) -> Whole:
    """Make all tables, the blame, the back-test and the report, as `pipeline all` does; what each cost."""
    stages: dict[str, float] = {}

    def told(words: str) -> None:
        name, _, seconds = words.partition(": ")
        stages[name] = float(seconds.split()[0])

    began, spent = time.perf_counter(), cpu()
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as place:
        commands.learn(Derived(session, Lake(session, str(root)), told), {"out": Path(place) / "report.html"})
    return Whole(time.perf_counter() - began, cpu() - spent, stages)


def in_duckdb(root: Path, threads: int) -> dict[str, float]:
    """Seconds for :data:`SQL` in DuckDB, over the same files and into a file, as the pipeline does."""
    import duckdb

    connection: Any = duckdb.connect(config={"threads": threads})
    files = f"{root}/journal/app=*/*/*/*.parquet"
    connection.execute(f"create view j as select * from read_parquet('{files}', hive_partitioning=true)")
    told = {}
    with tempfile.TemporaryDirectory() as place:
        for name, query in SQL.items():
            began = time.perf_counter()
            connection.execute(f"copy ({query}) to '{place}/{name}.parquet' (format parquet)")
            told[name] = time.perf_counter() - began
    return told


@dataclass(frozen=True)
class Day:
    """Entries of one day; seconds that the tables took, on the clock and of processors."""

    rows: int
    seconds: float
    cpu: float


def by_days(session: Any, root: Path, place: Path, cpu: Callable[[], float]) -> Iterator[Day]:
    """Bring a generated lake's days into another, one after the other; yield what each cost."""
    from deltalake import DeltaTable

    lake, known = Lake(session, str(place), "history"), set[str]()
    lake.journal.create(LAKE)
    for version in range(1, DeltaTable(str(root / "journal")).version() + 1):
        source = Table(session, str(root / "journal"), version=version)
        new = [path for path in source.delta.file_uris() if path not in known]
        known.update(new)
        files = []
        for path in map(Path, new):
            inner = path.relative_to(root / "journal")
            target = place / "journal" / inner
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(path)
            parts = dict(part.split("=") for part in inner.parts[:-1])
            files.append(Written(str(inner), path.stat().st_size, pq.read_metadata(path).num_rows, parts))
        position = source.position("history")
        assert position is not None
        lake.journal.commit(files, "history", position)
        began, spent = time.perf_counter(), cpu()
        Derived(session, lake).make()
        yield Day(sum(file.rows for file in files), time.perf_counter() - began, cpu() - spent)


def show(attempts: int, whole: Whole, duckdb: dict[str, float], peak_mb: float, target: float) -> None:
    for name, seconds in whole.stages.items():
        print(f"{name:20} {seconds:6.1f} s")
    print(f"{'all':20} {whole.seconds:6.1f} s {whole.cpu:6.1f} s of processors")
    for name, seconds in duckdb.items():
        print(f"{f'DuckDB: {name}':20} {seconds:6.1f} s")
    print(f"{attempts} attempts; target {target:.0f} s; peak memory {peak_mb:,.0f} MB")


def as_json(whole: Whole, duckdb: dict[str, float], peak_mb: float) -> str:
    return json.dumps({**asdict(whole), "duckdb": duckdb, "peak_mb": peak_mb})
