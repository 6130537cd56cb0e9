"""What tasks count by themselves in the stored attempts is what the tables' functions say of them (NEW-7)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.entries import W2, died, journal_of, ran

DAY = 86_400
HOSTILE = (
    {
        **ran("a", "a1", 10, ms=None),
        "task": None,
        "payload_bytes": None,
        "memory_kb": None,
        "fingerprint": None,
    },
    {**ran("b", "b1", 20), "payload_bytes": 5_000_000, "shape": None, "release": None},
    {**ran("c", "c1", DAY + 1), "outcome": "lost", "fingerprint": "gone"},
    ran("c", "c2", 2 * DAY),
    {**ran("d", "d1", 3 * DAY), "event": "rolled_back", "outcome": None},
    {**ran("e", "e1", 3 * DAY, worker=W2), "event": "interrupted", "outcome": None, "id": None},
    died("f", "f1", 5 * DAY, fingerprint="fd"),
    {**ran("g", "g1", 9 * DAY), "fingerprint": "fd"},
    {**ran("h", "h1", 9 * DAY + 1), "payload_bytes": 10**15, "fingerprint": "calm"},
    *({**ran(f"i{n}", f"i{n}", 30 * DAY + n, ms=n), "fingerprint": "calm"} for n in range(600)),
)


pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module", params=["hostile", "generated"])
def counted(
    request: pytest.FixtureRequest,
    spark: Any,
    attempts_of_history: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Any, Path, dict[str, Any]]:
    """The attempts, their lake, and what tasks made of them."""
    from celery_poison.pipeline import tables
    from celery_poison.pipeline.arrow import survey
    from celery_poison.pipeline.lake import Lake

    made = (
        attempts_of_history if request.param == "generated" else tables.attempts(journal_of(spark, *HOSTILE))
    )
    root = tmp_path_factory.mktemp("counted")
    made.repartitionByRange(5, "ended_at").write.partitionBy("end").parquet(str(root / "tables" / "attempts"))
    attempts = spark.read.parquet(str(root / "tables" / "attempts"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey, "_ROWS", 4_000 if request.param == "generated" else 3)
        files = survey.survey(Lake(spark, str(root)), str(root / "aside"))
    assert files is not None and len(files["kin"]) > 2
    return attempts, root, {name: spark.read.parquet(*paths) for name, paths in files.items()}


def _rows(frame: Any, *names: str) -> Counter[Any]:
    return Counter(tuple(row) for row in frame.select(*(names or frame.columns)).collect())


def test_tallies_and_kin_are_the_same_rows(counted: Any) -> None:
    from pyspark.sql import functions as F

    from celery_poison.pipeline import tables
    from celery_poison.pipeline.tables.tallies import KEYS

    attempts, _, told = counted
    whole = (
        told["tallies"]
        .groupBy(*KEYS)
        .agg(
            *(F.sum(name).alias(name) for name in ("n", "fingerprints")),
            F.min("since").alias("since"),
            F.max("until").alias("until"),
            F.max("date").alias("date"),
        )
    )
    expected = tables.tallies(attempts)
    assert _rows(whole, *expected.columns) == _rows(expected)
    expected = tables.kin(attempts)
    assert told["kin"].columns == expected.columns
    assert _rows(told["kin"]) == _rows(expected)


def test_each_day_of_a_task_is_counted_once_and_its_percentiles_are_exact(counted: Any) -> None:
    import duckdb

    from celery_poison.pipeline import tables

    attempts, root, told = counted
    expected = tables.task_daily(attempts)
    assert told["task_daily"].columns == expected.columns
    counts = [name for name in expected.columns if "_p" not in name]
    assert _rows(told["task_daily"], *counts) == _rows(expected, *counts)
    query = """
      select date, task, quantile_disc(runtime_ms, 0.5), quantile_disc(runtime_ms, 0.95),
             quantile_disc(payload_bytes, 0.95)
      from read_parquet(?, hive_partitioning = true) group by all
    """
    with duckdb.connect() as connection:
        exact = connection.execute(query, [f"{root}/tables/attempts/*/*.parquet"]).fetchall()
    names = ("date", "task", "runtime_p50_ms", "runtime_p95_ms", "payload_p95_bytes")
    assert _rows(told["task_daily"], *names) == Counter(exact)


def test_the_points_of_a_task_have_the_median_of_its_runs_that_ended_alive(counted: Any) -> None:
    import duckdb

    _, root, told = counted
    query = """
      select task, list_sort(list(payload_bytes) filter (payload_bytes is not null)),
             list_sort(list(runtime_ms) filter (runtime_ms is not null))
      from read_parquet(?, hive_partitioning = true)
      where "end" = 'rolled_back' or "end" = 'finished' and outcome is distinct from 'lost' group by task
    """
    with duckdb.connect() as connection:
        rows = connection.execute(query, [f"{root}/tables/attempts/*/*.parquet"]).fetchall()
    points: dict[tuple[Any, str], Counter[int]] = {}
    for row in told["usual"].collect():
        points.setdefault((row.task, row.measure), Counter())[row.value] += row.n
    for task, payloads, runtimes in rows:
        for measure, values in (("payload", payloads), ("duration", runtimes)):
            if not values:
                assert (task, measure) not in points
                continue
            found = sorted(points[task, measure].elements())
            assert len(found) == len(values)
            median = found[len(found) // 2]
            below, above = (sum(v < median for v in values), sum(v > median for v in values))
            assert max(below, above) <= 0.52 * len(values) + 1


def test_a_task_with_too_much_to_hold_leaves_it_to_spark(
    counted: Any, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_poison.pipeline.arrow import survey
    from celery_poison.pipeline.lake import Lake

    _, root, _ = counted
    lake = Lake(spark, str(root))
    for limit in ("_MOST", "_MOST_TROUBLES"):
        with monkeypatch.context() as patch:
            patch.setattr(survey, limit, 1)
            assert survey.survey(lake, str(root / "aside")) is None
