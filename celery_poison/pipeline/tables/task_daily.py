"""One row for each task and day."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import ended_alive


def task_daily(attempts: DataFrame) -> DataFrame:
    """Return how each task fared on each day (UTC): runs, deaths, time, memory and size.

    The percentiles are approximate, to one part in a thousand of the rank.

    Args:
        attempts: what :func:`attempts` returns.
    """
    alive = ended_alive(F.col("end"), F.col("outcome"))
    return attempts.groupBy("date", "task").agg(
        F.count(F.lit(1)).alias("attempts"),
        _count(alive).alias("alive"),
        _count(F.col("outcome") == "failure").alias("failures"),
        _count(F.col("outcome") == "retry").alias("retries"),
        _count(F.col("end") == "crashed").alias("deaths"),
        _count(F.col("proof") == "proven").alias("proven"),
        _count(F.col("end") == "interrupted").alias("interrupted"),
        _count(F.col("end") == "rolled_back").alias("rolled_back"),
        F.percentile_approx("runtime_ms", 0.5, 1000).alias("runtime_p50_ms"),
        F.percentile_approx("runtime_ms", 0.95, 1000).alias("runtime_p95_ms"),
        F.max("memory_kb").alias("memory_max_kb"),
        F.percentile_approx("payload_bytes", 0.95, 1000).alias("payload_p95_bytes"),
    )


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, True))
