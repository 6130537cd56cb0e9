"""One Spark session for all tests of the pipeline: starting it costs more than most of them."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from celery_poison.testing import wait_until
from celery_poison.testing.servers import free_ports
from tests import PATIENCE
from tests.services import need


@pytest.fixture(scope="session")
def java() -> None:
    """What Spark needs besides its own package."""
    pytest.importorskip("pyspark")
    from celery_poison.pipeline.session import SparkAbsent, find_java

    try:
        find_java()
    except SparkAbsent:
        need(False, "Java")


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[Any]:
    from celery_poison.pipeline.session import open_session

    # For small data the second compiler costs more than it saves; many plans in one process need the room.
    java = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
    conf = {
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.extraJavaOptions": java,
    }
    session = open_session("local[2]", conf=conf)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small generated history whose truth is known."""
    pytest.importorskip("pyarrow")
    from examples.histories import World, write

    target = tmp_path_factory.mktemp("histories") / "small"
    write(World(attempts=40_000, days=8, deploy_every_days=1), target)
    return target


@pytest.fixture(scope="session")
def attempts_of_history(spark: Any, history: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The table of attempts of that history, made once."""
    from celery_poison.pipeline.tables import attempts

    place = str(tmp_path_factory.mktemp("tables") / "attempts")
    attempts(spark.read.parquet(str(history))).write.parquet(place)
    return spark.read.parquet(place)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket that moto plays on this machine; a command that runs it: POISON_MOTO."""
    command = os.environ.get("POISON_MOTO", "").split() or [sys.executable, "-m", "moto.server"]
    if "POISON_MOTO" not in os.environ:
        pytest.importorskip("moto")
    (port,) = free_ports()
    url = f"http://127.0.0.1:{port}"
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    nobody: Any = subprocess.DEVNULL
    process = subprocess.Popen([*command, "-H", "127.0.0.1", "-p", str(port)], stdout=nobody, stderr=nobody)

    def made() -> bool:
        with suppress(OSError):
            asked = urllib.request.Request(f"{url}/lakes", method="PUT")
            return bool(urllib.request.urlopen(asked).status == 200)
        return False

    try:
        wait_until(made)
        yield "s3a://lakes/poison"
    finally:
        process.kill()
        process.wait(PATIENCE)
