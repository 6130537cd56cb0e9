"""How fast the journal comes into the lake: rows a second from Redis to Parquet, with Spark on this machine.

    python benchmarks/pipeline.py                        # a million entries of schema v3, three rounds
    python benchmarks/pipeline.py --rows 5000000 --version 1 --json
    python benchmarks/pipeline.py --all 5000000          # not the ingest, but all that comes after it
    python benchmarks/pipeline.py --all 5000000 --days 30   # the tables, brought up to date day by day
    python benchmarks/pipeline.py --all 200000 --against ../other   # the command, in pairs with another tree

A private Redis is filled beforehand; the clock runs from the start of the ingest until all entries count in
the lake, in a session that has ingested once before (``--cold``: that has not). Leaves with status 1 when the
median is below ``--target``; with ``--all`` when it takes more than ``--seconds``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pipeline_pairs
import pipeline_stages

from celery_poison.ledger.keys import Keys
from celery_poison.pipeline.ingest.ingest import Ingest, Wanted
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.schema import FIELDS, WIDTHS
from celery_poison.pipeline.session import open_session
from celery_poison.testing import RedisServer

#: Writes healthy and unhealthy runs of 40 tasks on 12 workers, about as long as real ones.
FILL = """
local names = cjson.decode(ARGV[3])
for i = ARGV[1], ARGV[1] + ARGV[2] - 1 do
  local id = redis.sha1hex(i)
  local bad = i % 50 == 0
  local e = {
    v = tostring(({[20] = 1, [26] = 2, [28] = 3})[#names]), event = bad and 'crashed' or 'finished',
    id = string.sub(id, 1, 8) .. '-' .. string.sub(id, 9, 12) .. '-' .. string.sub(id, 13, 36),
    mid = string.sub(id, 5, 36), token = 'b00t' .. (i % 12) .. '.' .. i, task = 'shop.tasks.task_' .. i % 40,
    queue = 'q', worker = 'celery@app-' .. i % 12 .. '/b00t' .. i % 12, pid = tostring(1000 + i % 48),
    state = bad and 'TBDL' or 'DLVD', cause = bad and 'exit:9' or '', outcome = bad and 'exact' or 'success',
    deliveries = '1', crashes = bad and '1' or '', strikes = bad and '1' or '',
    runtime_ms = tostring((i * 7919) % 60000), payload_bytes = tostring((i * 31) % 9000),
    memory_kb = tostring(50000 + i % 9000), fingerprint = string.sub(id, 1, 16), shape = 'int,str;page=str',
    release = '1.' .. math.floor(i / 100000),
    evidence = bad and '{"signal":9,"oom":true,"rss_kb":512000}' or '',
    enqueued_at = '1792000000000', run_memory_kb = tostring(48000 + i % 9000)
  }
  local flat = {}
  for k = 1, #names do flat[2 * k - 1] = names[k]; flat[2 * k] = e[names[k]] or '' end
  redis.call('XADD', KEYS[1], '*', unpack(flat))
end
"""


@dataclass(frozen=True)
class Round:
    """One ingest: seconds, and processor seconds of Redis and of everything else of ours."""

    rows: int
    seconds: float
    redis_cpu: float
    our_cpu: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


def fill(server: RedisServer, rows: int, version: int) -> None:
    names = json.dumps(["v", *(name for name, _ in FIELDS)][: WIDTHS[version]])
    for start in range(0, rows, 20_000):
        server.client().eval(FILL, 1, Keys().journal, start, min(20_000, rows - start), names)


def measure(session: Any, server: RedisServer, rows: int, partitions: int, max_rows: int) -> Round:
    with tempfile.TemporaryDirectory() as place:
        wanted = Wanted(server.url(), partitions=partitions, max_rows=max_rows)
        ingest = Ingest(Lake(session, f"{place}/lake"), wanted)
        redis_cpu, our_cpu, start = _redis_cpu(server), _our_cpu(), time.perf_counter()
        done = ingest.once()
        seconds = time.perf_counter() - start
        if done.rows != rows:
            raise SystemExit(f"{done.rows} of {rows} entries came into the lake")
        return Round(rows, seconds, _redis_cpu(server) - redis_cpu, _our_cpu() - our_cpu)


def _redis_cpu(server: RedisServer) -> float:
    told: Any = server.client().info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


def _our_cpu() -> float:
    """Return the processor seconds of this process and all below it, Redis not among them."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in _family():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / ticks
    return total


def _family() -> list[int]:
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        if "(redis-server" not in name:
            parents.setdefault(int(rest.split()[1]), []).append(int(path.parent.name))
    found = [os.getpid()]
    for pid in found:
        found.extend(parents.get(pid, []))
    return found


def peak_mb() -> float:
    """Return the most memory that Java, its Python workers and this process held, added up."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return own + sum(_high_water(pid) for pid in _family()[1:])


def _high_water(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure_all(asked: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as place:
        lake = asked.lake or Path(place) / "lake"
        if not asked.lake:
            pipeline_stages.generate(asked.all, asked.troubles, lake)
        session = open_session(f"local[{asked.cores}]", asked.memory)
        try:
            whole = pipeline_stages.measure(session, lake, _our_cpu)
            peak = peak_mb()
        finally:
            session.stop()
        duckdb = pipeline_stages.in_duckdb(lake, asked.cores)
    if asked.json:
        print(pipeline_stages.as_json(whole, duckdb, peak))
    else:
        pipeline_stages.show(asked.all, whole, duckdb, peak, asked.seconds)
    return 0 if whole.seconds <= asked.seconds else 1


def measure_pairs(asked: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as place:
        lake = asked.lake or Path(place) / "lake"
        if not asked.lake:
            pipeline_stages.generate(asked.all, asked.troubles, lake)
        words = ["--memory", asked.memory, "--master", f"local[{asked.cores}]"]
        pairs = pipeline_pairs.measure(lake, asked.against.resolve(), asked.pairs, words)
        return 0 if pipeline_pairs.show(pairs, asked.json) <= asked.ratio else 1


def measure_days(asked: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as place:
        whole = asked.lake or Path(place) / "whole"
        if not asked.lake:
            pipeline_stages.generate(asked.all, asked.troubles, whole, asked.days)
        session = open_session(f"local[{asked.cores}]", asked.memory)
        try:
            told = []
            for number, day in enumerate(
                pipeline_stages.by_days(session, whole, Path(place) / "grown", _our_cpu), 1
            ):
                told.append(day)
                print(
                    f"day {number}: {day.rows:,} entries, tables in {day.seconds:.1f} s,"
                    f" {day.cpu:.1f} s of processors",
                    flush=True,
                )
            peak = peak_mb()
        finally:
            session.stop()
    # Of processors: what else a machine does changes the clock more than one day differs from another.
    times = told[-1].cpu / told[1].cpu
    print(f"the last day cost {times:.2f} times the second one; peak memory {peak:,.0f} MB")
    return 0 if times <= 1.2 else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--version", type=int, choices=sorted(WIDTHS), default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--target", type=float, default=150_000.0, help="rows a second")
    parser.add_argument("--cold", action="store_true", help="count the first round of the session too")
    parser.add_argument("--max-rows", type=int, default=10**9, help="entries of one batch, about")
    parser.add_argument("--all", type=int, metavar="ATTEMPTS", help="measure all stages after the ingest")
    parser.add_argument("--days", type=int, help="with --all: so many days, one after the other")
    parser.add_argument(
        "--troubles", type=float, default=0.01, help="with --all: in trouble for each healthy one"
    )
    parser.add_argument("--lake", type=Path, help="with --all: a lake that is there already")
    parser.add_argument("--seconds", type=float, default=60.0, help="with --all: the target")
    parser.add_argument("--against", type=Path, metavar="TREE", help="with --all: in pairs with another tree")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ratio", type=float, default=0.5, help="with --against: of its clock, the target")
    parser.add_argument("--memory", default="1g", help="heap of Spark's driver")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.against:
        return measure_pairs(asked)
    if asked.all:
        return measure_days(asked) if asked.days else measure_all(asked)
    with RedisServer() as server:
        fill(server, asked.rows, asked.version)
        session = open_session(f"local[{asked.cores}]")
        try:
            count = asked.rounds + (0 if asked.cold else 1)
            rounds = [
                measure(session, server, asked.rows, asked.partitions, asked.max_rows) for _ in range(count)
            ]
            peak = peak_mb()
        finally:
            session.stop()
    rounds = rounds[-asked.rounds :]
    rate = statistics.median(each.rate for each in rounds)
    if asked.json:
        print(json.dumps({"rate": rate, "peak_mb": peak, "rounds": [asdict(each) for each in rounds]}))
    else:
        for each in rounds:
            print(
                f"{each.rows} rows in {each.seconds:.1f} s: {each.rate:,.0f} rows/s;"
                f" processor µs per row: Redis {each.redis_cpu / each.rows * 1e6:.1f},"
                f" the rest {each.our_cpu / each.rows * 1e6:.1f}"
            )
        print(f"median {rate:,.0f} rows/s, target {asked.target:,.0f}; peak memory {peak:,.0f} MB")
    return 0 if rate >= asked.target else 1


if __name__ == "__main__":
    sys.exit(main())
