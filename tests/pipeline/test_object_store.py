"""A lake on an S3 API: the same commits, the same refusals, and Spark needs no connector (NEW-7)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import redis

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import pyarrow as pa

from celery_poison.pipeline import maintain, sink
from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.ingest.ingest import Ingest, Wanted
from celery_poison.pipeline.lake import Lake, LakeTaken
from tests.pipeline.journals import add, in_store, told

pytestmark = pytest.mark.matrix


def test_ingest_tables_and_maintenance_work_on_an_object_store(
    spark_of_store: Any, store: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = redis.Redis.from_url(redis_url)
    add(client, 200)
    add(client, 20, start=200, event="crashed", outcome="exact", token="t", worker="a@b/c")
    sleeper, ingest = (Ingest(Lake(spark_of_store, store), Wanted(redis_url)) for _ in range(2))
    bring = sleeper._bring

    def sleep_after(spans: list[tuple[str, str]]) -> list[sink.Written]:
        files = bring(spans)
        assert ingest.once().rows == 220
        return files

    monkeypatch.setattr(sleeper, "_bring", sleep_after)
    with pytest.raises(LakeTaken):
        sleeper.once()
    add(client, 30, start=220)
    assert Ingest(Lake(spark_of_store, store), Wanted(redis_url)).once().rows == 30
    lake = Lake(spark_of_store, store)
    assert in_store(store) == sorted(told(client))
    assert lake.entries(healthy=True).count() == 230
    reader = lake.entries()
    assert maintain.compact(lake.journal) > 0 and maintain.vacuum(lake.journal) == 0
    assert reader.count() == 250
    derived = Derived(spark_of_store, lake)
    assert derived["messages"].count() == 250
    assert maintain.forget(lake, [lake.journal], ["id-3"]) == 1
    assert pa.table(lake.journal.delta.scan(["id"])).num_rows == 249


@pytest.fixture
def spark_of_store(store: str, spark: Any) -> Iterator[Any]:
    """The session, whose Python workers are told of the store, too."""
    environment = spark.sparkContext.environment
    told = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    environment.update(told)
    yield spark
    for name in told:
        del environment[name]
