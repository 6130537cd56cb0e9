"""One Spark session for all tests of the pipeline: starting it costs more than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark")
    from celery_poison.pipeline.session import open_session

    session = open_session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})
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
