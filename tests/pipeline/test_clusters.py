"""A standalone cluster and Spark Connect find the same as this machine does, up to the report (NEW-7)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from tests import PATIENCE

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from celery_poison.testing import RedisServer, wait_until
from celery_poison.testing.servers import free_ports
from examples.histories import World, write_lake
from tests.pipeline.journals import Driver, Producer, add, commits, in_lake, in_store, told

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(600), pytest.mark.usefixtures("java")]


@contextmanager
def _java(log: Path, main: str, *words: str, host: str = "127.0.0.1") -> Iterator[subprocess.Popen[bytes]]:
    """Run a class of Spark's in a session of its own."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environ = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "PYSPARK_PYTHON": sys.executable,
        # Not that of a session of an earlier test, which logs next to nothing.
        "SPARK_CONF_DIR": str(home / "conf"),
    }
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), main, *words],
            env=environ,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd=log.parent,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, 9)
        process.wait(PATIENCE)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master and two workers, each with a host of its own: else Spark would not speculate."""
    deploy = "org.apache.spark.deploy"
    (port,) = free_ports()
    master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    with ExitStack() as stack:
        stack.enter_context(_java(tmp_path / "master.log", f"{deploy}.master.Master", *master))
        wait_until(lambda: _answers(port))
        url = f"spark://127.0.0.1:{port}"
        for number in (1, 2):
            log = tmp_path / f"worker{number}.log"
            host = f"127.0.0.{number}"
            options = ["--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            options += ["--work-dir", str(tmp_path / f"work{number}")]
            stack.enter_context(_java(log, f"{deploy}.worker.Worker", *options, url, host=host))
            wait_until(lambda log=log: "registered with master" in log.read_text().lower())
        yield url


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[str]:
    """A Spark Connect server."""
    pytest.importorskip("grpc")
    (port,) = free_ports()
    words = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"]
    words += ["--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false"]
    main = "org.apache.spark.deploy.SparkSubmit"
    with _java(tmp_path / "connect.log", main, *words, "spark-internal"):
        wait_until(lambda: _answers(port))
        yield f"sc://127.0.0.1:{port}"


def _run(*words: str) -> Any:
    """Return what a program of ours prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
        # Else executors run the first python3 of the path, which need not be this one.
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return _read(done.stdout)


def _read(text: str) -> Any:
    return _sorted(json.loads(text, parse_float=lambda word: round(float(word), 9)))


def _sorted(told: Any) -> Any:
    """Put in one order what has none."""
    if isinstance(told, dict):
        return {name: _sorted(value) for name, value in told.items()}
    return sorted(map(_sorted, told), key=json.dumps) if isinstance(told, list) else told


@pytest.mark.parametrize("kind", ["cluster", "connect"])
def test_the_same_lake_comes_of_it(
    kind: str, request: pytest.FixtureRequest, redis_url: str, tmp_path: Path
) -> None:
    master = request.getfixturevalue(kind)
    client = redis.Redis.from_url(redis_url)
    lake = tmp_path / "lake"
    for start in (0, 50_000):
        add(client, 50_000, start=start, note="\r\nü")
        words = ["ingest", "--redis", redis_url, "--lake", str(lake), "--master", master, "--json"]
        assert _run("celery_poison.cli.standalone", "pipeline", *words)["rows"] == 50_000
    assert in_lake(lake) == told(client)


@pytest.mark.parametrize("kind", ["cluster", "connect"])
def test_the_same_lake_comes_of_it_on_an_object_store(
    store: str, kind: str, request: pytest.FixtureRequest, redis_url: str
) -> None:
    master = request.getfixturevalue(kind)  # after the store: its processes know the keys
    client = redis.Redis.from_url(redis_url)
    for start in (0, 5_000):
        add(client, 5_000, start=start, note="\r\nü")
        words = ["ingest", "--redis", redis_url, "--lake", store, "--master", master, "--json"]
        assert _run("celery_poison.cli.standalone", "pipeline", *words)["rows"] == 5_000
    assert in_store(store) == sorted(told(client))


def _executors(place: Path) -> list[int]:
    """Return the processes of the executors that the workers below this directory have started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"CoarseGrainedExecutorBackend" not in (process / "cmdline").read_bytes():
                continue
            if (process / "cwd").readlink().is_relative_to(place):
                found.append(int(process.name))
    return sorted(found)


def test_neither_a_frozen_executor_nor_a_lost_one_stops_an_ingest_with_speculation_or_doubles_an_entry(
    cluster: str, redis_url: str, tmp_path: Path
) -> None:
    client = redis.Redis.from_url(redis_url)
    lake = tmp_path / "lake"
    producer = Producer(client)
    speculation = ["spark.speculation=true", "spark.speculation.task.duration.threshold=1s"]
    options = [word for conf in speculation for word in ("--conf", conf)]
    driver = Driver(redis_url, lake, "--follow", "--every", "0.05", *options, master=cluster)

    def goes_on(further: int = 8) -> None:
        # So many that the executor in trouble had one of their tasks: they are dealt at random.
        goal = commits(lake) + further
        wait_until(lambda: commits(lake) >= goal or driver.process.poll() is not None, timeout=240)
        assert driver.process.poll() is None, driver.log()

    try:
        goes_on()
        wait_until(lambda: len(_executors(tmp_path)) == 2)
        frozen, lost = _executors(tmp_path)
        os.kill(frozen, signal.SIGSTOP)
        goes_on()
        os.kill(frozen, signal.SIGCONT)
        goes_on()
        os.kill(lost, signal.SIGKILL)
        goes_on()
        wait_until(lambda: len(set(_executors(tmp_path)) - {lost}) == 2)
        os.kill(frozen, signal.SIGKILL)
        goes_on()
        producer.stop()
        wait_until(lambda: len(in_lake(lake)) == producer.count, timeout=120)
    finally:
        producer.stop()
        driver.close()
    assert in_lake(lake) == told(client, Producer.COPY)
    assert "GAP" not in driver.log()


def _found(master: str, url: str, lake: Path) -> dict[str, Any]:
    """Return everything that the stages find in a lake, from one that has no tables yet on."""
    told: dict[str, Any] = _run("tests.pipeline.every_stage", master, url, str(lake))
    assert set(told.pop("all")) == {"page", "figures"}
    told["report"] = _read((lake / "report.json").read_text())
    proposal = told.pop("publish")["proposal"]
    told["proposal"] = [proposal["rules"], proposal["policy"], proposal["reasons"]]
    tables = sorted((lake / "tables" / "history").iterdir())
    return told | {table.name: _rows(table) for table in tables if table.name != "sketches"}


def _rows(table: Path) -> list[Any]:
    import duckdb
    from deltalake import DeltaTable

    files = DeltaTable(str(table)).file_uris()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.execute("SELECT * FROM read_parquet(?, hive_partitioning=true)", [files])
        names = [column[0] for column in rows.description or ()]
        found = [dict(sorted(zip(names, row, strict=True))) for row in rows.fetchall()]
    told: list[Any] = _read(json.dumps(found, default=str))
    return told


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of a history whose truth is known."""
    place = tmp_path_factory.mktemp("made") / "lake"
    write_lake(World(attempts=40_000, days=8, deploy_every_days=1), place)
    return place


@pytest.fixture(scope="module")
def here(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What this machine finds in it."""
    lake = tmp_path_factory.mktemp("here") / "lake"
    shutil.copytree(made, lake)
    with RedisServer() as server:
        return _found("local[2]", server.url(), lake)


@pytest.mark.parametrize("kind", ["cluster", "connect"])
def test_every_stage_finds_the_same(
    kind: str,
    here: dict[str, Any],
    made: Path,
    request: pytest.FixtureRequest,
    redis_url: str,
    tmp_path: Path,
) -> None:
    lake = tmp_path / "lake"
    shutil.copytree(made, lake)
    there = _found(request.getfixturevalue(kind), redis_url, lake)
    assert len(here["proposal"][0]) > 20 and sum(row["n"] for row in here["runs_daily"]) > 35_000
    assert there.keys() == here.keys()
    for name, value in here.items():
        assert there[name] == value, name
