"""Journals in a private Redis, and lakes as somebody without Spark sees them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
import redis

from celery_poison.ledger.keys import Keys
from celery_poison.pipeline.ingest.stream import parts
from celery_poison.pipeline.schema import FIELDS, WIDTHS
from tests import PATIENCE

KEY = Keys().journal
COLUMNS = ("entry", "v", *(name for name, _ in FIELDS))


def entry(number: int, version: int = 3, **told: str) -> dict[str, str]:
    """Return the fields of one entry, in their order, different for each number."""
    filled = {
        "event": "finished",
        "id": f"id-{number}",
        "mid": f"mid-{number}",
        "task": "shop.convert",
        "pid": str(number % 7),
        "outcome": "success",
        "runtime_ms": str(number),
        **told,
    }
    names = [name for name, _ in FIELDS][: WIDTHS[version] - 1]
    return {"v": str(version), **{name: filled.get(name, "") for name in names}}


def add(client: redis.Redis, count: int, start: int = 0, version: int = 3, **told: str) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(start, start + count):
        pipe.xadd(KEY, entry(number, version, **told))  # type: ignore[arg-type]
    pipe.execute()


def told(client: redis.Redis, key: str = KEY) -> list[tuple[Any, ...]]:
    """Return the journal as redis-py reads it, in the form of the lake's rows."""
    found: Any = client.xrange(key)
    rows = []
    for name, fields in found:
        values = {key.decode(): value.decode() for key, value in fields.items()}
        row: list[Any] = [name.decode(), int(values["v"])]
        for column, kind in FIELDS:
            text = values.get(column, "")
            row.append((int(text) if kind.typeName() == "long" else text) if text else None)
        rows.append(tuple(row))
    return rows


def in_lake(lake: Path) -> list[tuple[Any, ...]]:
    """Return the journal as DuckDB finds it in the lake's files, and deltalake's own reader, in its order."""
    import duckdb
    from deltalake import DeltaTable

    table = DeltaTable(str(lake / "journal"))
    columns = ", ".join(f'"{name}"' for name in COLUMNS)
    query = f"select {columns} from read_parquet(?, union_by_name=true)"
    files = [unquote(uri) for uri in table.file_uris()]
    rows: list[tuple[Any, ...]] = duckdb.connect().execute(query, [files]).fetchall() if files else []
    rows.sort(key=lambda row: parts(row[0]))
    own = [tuple(row.values()) for row in pa.table(table.scan(columns=[*COLUMNS])).to_pylist()]
    assert sorted(own, key=lambda row: parts(row[0])) == rows
    return rows


def in_store(lake: str) -> list[tuple[Any, ...]]:
    """Return the same of a lake on an object store, in any order, as deltalake's own reader finds it."""
    from deltalake import DeltaTable

    rows = pa.table(DeltaTable(f"{lake}/journal").scan(columns=[*COLUMNS])).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def commits(lake: Path) -> int:
    return len(list(lake.glob("journal/_delta_log/*.json")))


def add_spread(client: redis.Redis, count: int) -> None:
    """Add entries a millisecond apart, so that it is known which of them a batch of ``max_rows`` holds."""
    for number in range(count):
        client.xadd(KEY, entry(number), id=f"{1_772_452_800_000 + number}-0")  # type: ignore[arg-type]


class Here:
    """Stands for a Spark session to an ingest: its tasks run in this process, one after the other."""

    conf: ClassVar = {"spark.poison.tasks": "true"}

    @property
    def sparkSession(self) -> Here:
        return self

    def range(self, start: int, end: int, step: int, tasks: int) -> Here:
        self._tasks = range(start, end, step)
        return self

    def mapInArrow(self, task: Any, schema: str) -> Here:
        given = (pa.RecordBatch.from_pydict({"id": [number]}) for number in self._tasks)
        self._told = [batch for each in given for batch in task(iter([each]))]
        return self

    def toArrow(self) -> pa.Table:
        return pa.Table.from_batches(self._told)


class Producer:
    """Writes entries until it is stopped, each to the journal and then to ``COPY``, which nobody trims."""

    COPY = "copy"

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._over = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._over.wait(0.002):
            fields = entry(self.count, version=1 + self.count // 500 % 2)
            self._client.xadd(self.COPY, fields, id=self._client.xadd(KEY, fields))  # type: ignore[arg-type]
            self.count += 1

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


class Driver:
    """`celery-poison pipeline ingest` as a process of its own."""

    def __init__(self, url: str, lake: Path, *options: str, master: str = "local[2]", log: str = "") -> None:
        self._log = lake.parent / f"driver{log}.log"
        command = [sys.executable, "-m", "celery_poison.cli.standalone", "pipeline", "ingest"]
        # The first compiler alone: half the time to start, and these batches are small.
        java = "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        command += ["--redis", url, "--lake", str(lake), "--master", master, "--conf", java, *options]
        # Else executors run the first python3 of the path, which need not be this one.
        environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, start_new_session=True, stdout=log, stderr=log, env=environ
            )

    def kill(self, alone: bool = False) -> None:
        """SIGKILL the process and its Java, or the process alone."""
        if alone:
            self.process.kill()
        else:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def pythons(self) -> list[int]:
        """Return the ids of the processes that run Python for Spark's tasks."""
        found = dict(_running(self.process.pid, b"pyspark.daemon"))
        return [pid for pid, parent in found.items() if parent in found]  # the daemon only forks them

    def end(self) -> int:
        return self.process.wait(PATIENCE)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """Leave nothing of it behind."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


def _running(session: int, word: bytes) -> Iterator[tuple[int, int]]:
    """Yield id and parent of the processes of a session whose command has that word in it."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and word in (place / "cmdline").read_bytes():
                yield int(place.name), int(fields[1])
