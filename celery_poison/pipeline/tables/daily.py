"""What runs took on each day, by task and by all that they have in common: counts and sketches, which add up.

A *sketch* (KLL) holds a distribution in a few kilobytes; two of them make the sketch of both, and a
percentile read from it is right to about one part in a hundred of the rank.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import LONGEST_MS, count, ended_alive, ran_ms
from celery_poison.pipeline.window import SIZE

MEASURES = {"payload": "payload_bytes", "duration": "runtime_ms"}
#: What attempts of one row have in common. ``size`` is the number of its decade of bytes.
KEYS = ("date", "end", "outcome", "proof", "cause", "task", "queue", "shape", "size", "host", "release")
_COUNTS = ("attempts", "failures", "retries", "deaths", "proven", "interrupted", "rolled_back")


def tallies(attempts: DataFrame) -> DataFrame:
    """Return how many attempts there are of each kind on each day.

    Returns:
        :data:`KEYS`; ``n``, and how many of these have a ``fingerprint``; ``runtime_ms``, the sum of what is
        known; ``since`` and ``until``, the first and the last end.
    """
    return (
        attempts.withColumn("size", F.expr(SIZE))
        .groupBy(*KEYS)
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.count("fingerprint").alias("fingerprints"),
            # One entry that says nonsense spoils no model: no run counts for more than a week.
            F.coalesce(F.try_sum(F.least(ran_ms(), F.lit(LONGEST_MS))), F.lit(0))
            .cast("long")
            .alias("runtime_ms"),
            F.min("ended_at").alias("since"),
            F.max("ended_at").alias("until"),
        )
    )


def daily(attempts: DataFrame) -> DataFrame:
    """Return ``date, task, alive``, counts, and a sketch of each of :data:`MEASURES`. Rows may be split.

    ``alive`` says whether the attempts of a row ended alive.
    """
    alive = ended_alive(F.col("end"), F.col("outcome")).alias("alive")
    return attempts.groupBy("date", "task", alive).agg(
        F.count(F.lit(1)).alias("attempts"),
        count(F.col("outcome") == "failure").alias("failures"),
        count(F.col("outcome") == "retry").alias("retries"),
        count(F.col("end") == "crashed").alias("deaths"),
        count(F.col("proof") == "proven").alias("proven"),
        count(F.col("end") == "interrupted").alias("interrupted"),
        count(F.col("end") == "rolled_back").alias("rolled_back"),
        F.max("memory_kb").alias("memory_max_kb"),
        *(F.kll_sketch_agg_bigint(column).alias(name) for name, column in MEASURES.items()),
    )


def task_daily(counted: DataFrame) -> DataFrame:
    """Return how each task fared on each day (UTC): runs, deaths, time, memory and size.

    Args:
        counted: what :func:`daily` returns.
    """
    whole = counted.groupBy("date", "task").agg(
        *(F.sum(name).alias(name) for name in _COUNTS),
        F.sum(F.when(F.col("alive"), F.col("attempts")).otherwise(0)).alias("alive"),
        F.max("memory_max_kb").alias("memory_max_kb"),
        *(F.kll_merge_agg_bigint(name).alias(name) for name in MEASURES),
    )
    return whole.select(
        *("date", "task", "attempts", "alive"),
        *_COUNTS[1:],
        _quantile("duration", 0.5).alias("runtime_p50_ms"),
        _quantile("duration", 0.95).alias("runtime_p95_ms"),
        "memory_max_kb",
        _quantile("payload", 0.95).alias("payload_p95_bytes"),
    )


def _n(sketch: str) -> Column:
    return F.kll_sketch_get_n_bigint(sketch)


def _quantile(sketch: str, rank: float) -> Column:
    return F.when(_n(sketch) > 0, F.kll_sketch_get_quantile_bigint(F.col(sketch), F.lit(rank)))
