"""Attempts that are alike, counted: one pass serves every figure that only counts."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import ran_ms

#: What attempts of one row have in common. ``size`` is the number of its decade, see :func:`decade`.
KEYS = ("date", "end", "outcome", "proof", "cause", "task", "queue", "shape", "size", "host", "release")


def decade(size: Column) -> Column:
    """Return 0 for a size under 1 kB, 1 under 10 kB, and so on to 6 for 100 MB or more; null stays null."""
    number = F.when(size < 1000, 0)
    for power in range(4, 9):
        number = number.when(size < 10**power, power - 3)
    return number.when(size.isNotNull(), 6)


def tallies(attempts: DataFrame) -> DataFrame:
    """Return how many attempts there are of each kind on each day.

    Returns:
        :data:`KEYS`; ``n``, and how many of these have a ``fingerprint``; ``runtime_ms``, the sum of what is
        known; ``since`` and ``until``, the first and the last end.
    """
    return (
        attempts.withColumn("size", decade(F.col("payload_bytes")))
        .groupBy(*KEYS)
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.count("fingerprint").alias("fingerprints"),
            # A sum of so many may not fit into 64 bits where somebody tells nonsense.
            F.coalesce(F.try_sum(ran_ms()), F.lit(0)).cast("long").alias("runtime_ms"),
            F.min("ended_at").alias("since"),
            F.max("ended_at").alias("until"),
        )
    )
