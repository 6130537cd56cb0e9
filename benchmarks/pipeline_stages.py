"""How long each stage of `pipeline all` takes after the ingest: see pipeline.py, which runs this."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from celery_poison.pipeline import run_report
from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.lake import Lake

ROOT = Path(__file__).resolve().parents[1]
#: The worst of what `tables` is asked to do, in one sentence of SQL, for comparison.
SQL = {
    "task_daily": "select date, task, count(*), quantile_cont(runtime_ms, [0.5, 0.95]) from j"
    " where event in ('finished', 'crashed', 'interrupted', 'rolled_back') group by all",
    "messages": "select mid, arg_max(state, (j.at, j.seq)), min(j.at), max(j.at), count(distinct token),"
    " sum(runtime_ms) from j where mid is not null group by mid",
}


@dataclass(frozen=True)
class Stage:
    """Seconds on the clock, and of processors, Java's compiler and garbage collector among them."""

    name: str
    seconds: float
    cpu: float


def generate(attempts: int, place: Path) -> None:
    """Write a generated lake, in a process of its own so that its memory is not counted here."""
    command = [sys.executable, "-m", "examples.histories", str(place), "--attempts", str(attempts)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def measure(session: Any, root: Path, cpu: Callable[[], float]) -> list[Stage]:
    """Make all tables, the blame, the back-test and the report, as `pipeline all` does; what each cost."""
    lake = Lake(session, str(root))
    told: list[Stage] = []
    last = [time.perf_counter(), cpu()]

    def lap(name: str) -> None:
        now = [time.perf_counter(), cpu()]
        told.append(Stage(name, now[0] - last[0], now[1] - last[1]))
        last[:] = now

    derived = Derived(session, lake, lambda words: lap(words.partition(":")[0]))
    derived.make()
    derived.judge()
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as place:
        run_report.run(session, lake, {"out": Path(place) / "report.html"})
    lap("backtest and report")
    return told


def in_duckdb(root: Path, threads: int) -> dict[str, float]:
    """Seconds for :data:`SQL` in DuckDB, over the same files."""
    import duckdb

    connection: Any = duckdb.connect(config={"threads": threads})
    files = f"{root}/journal/*/*/*.parquet"
    connection.execute(f"create view j as select * from read_parquet('{files}', hive_partitioning=true)")
    told = {}
    for name, query in SQL.items():
        began = time.perf_counter()
        connection.execute(query).fetchall()
        told[name] = time.perf_counter() - began
    return told


def show(attempts: int, stages: list[Stage], duckdb: dict[str, float], peak_mb: float, target: float) -> None:
    for each in stages:
        beside = f"   DuckDB {duckdb[each.name]:.1f} s" if each.name in duckdb else ""
        print(f"{each.name:20} {each.seconds:6.1f} s {each.cpu:6.1f} s of processors{beside}")
    seconds, cpu = sum(each.seconds for each in stages), sum(each.cpu for each in stages)
    print(f"{'all':20} {seconds:6.1f} s {cpu:6.1f} s of processors")
    print(f"{attempts} attempts; target {target:.0f} s; peak memory {peak_mb:,.0f} MB")


def as_json(stages: list[Stage], duckdb: dict[str, float], peak_mb: float) -> str:
    return json.dumps({"stages": [asdict(each) for each in stages], "duckdb": duckdb, "peak_mb": peak_mb})
