"""How much longer a count by task takes from an object store than from a directory: Spark on one machine.

    python benchmarks/object_store.py --rows 1000000     # wants moto[server]

The same lake lies in a directory and in a bucket that moto plays; both are counted in turn. Leaves with
status 1 where the median ratio is above 1.5.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pipeline_stages

from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.session import open_session
from celery_poison.testing import wait_until
from celery_poison.testing.servers import free_ports

BUCKET = "lakes"


@contextmanager
def store() -> Iterator[str]:
    """Start moto on a free port, tell this process of it, and yield its URL."""
    (port,) = free_ports()
    url = f"http://127.0.0.1:{port}"
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}
    os.environ.update({**keys, "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"})
    quiet: Any = subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=quiet, stderr=quiet
    )

    def is_made() -> bool:
        with suppress(OSError):
            put(f"{url}/{BUCKET}", b"")
            return True
        return False

    try:
        wait_until(is_made, 60, what="moto answers")
        yield url
    finally:
        process.kill()
        process.wait()


def put(url: str, body: bytes) -> None:
    headers = {"Content-Type": "application/octet-stream"}  # moto would read it as a form
    urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT"), timeout=60).close()


def count(session: Any, lake: str) -> float:
    """Return the seconds that one count of all runs by task takes."""
    began = time.perf_counter()
    runs = Lake(session, lake).entries(healthy=True, columns=["task"])  # a store sends what is asked for
    rows = runs.groupBy("task").count().collect()
    if not rows:
        raise SystemExit(f"{lake} holds no runs")
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, store() as url:
        lake = Path(place) / "lake"
        pipeline_stages.generate(asked.rows, 0.02, lake)
        for file in lake.rglob("*"):
            if file.is_file():
                put(f"{url}/{BUCKET}/lake/{file.relative_to(lake)}", file.read_bytes())
        session = open_session("local[2]", "1g")
        try:
            session.sparkContext.environment.update(
                {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
            )
            places = str(lake), f"s3a://{BUCKET}/lake"
            for each in places:
                count(session, each)  # classes, Python workers
            pairs = [[count(session, each) for each in places] for _ in range(asked.rounds)]
        finally:
            session.stop()
    ratios = [there / here for here, there in pairs]
    here, there = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    print(f"{asked.rows:,} entries, count by task: directory {here:.2f} s, object store {there:.2f} s")
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return 0 if statistics.median(ratios) <= 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
