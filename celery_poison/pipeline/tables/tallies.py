"""Attempts that are alike, counted: one pass serves every figure that only counts."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

#: What attempts of one row have in common. ``size`` is the number of its decade, see :func:`decade`.
KEYS = ("end", "outcome", "proof", "task", "shape", "size", "host", "release")


def decade(size: Column) -> Column:
    """Return 0 for a size under 1 kB, 1 under 10 kB, and so on to 6 for 100 MB or more; null stays null."""
    number = F.when(size < 1000, 0)
    for power in range(4, 9):
        number = number.when(size < 10**power, power - 3)
    return number.when(size.isNotNull(), 6)


def tallies(attempts: DataFrame) -> DataFrame:
    """Return how many attempts there are of each kind.

    Returns:
        :data:`KEYS`; ``n``, and how many of these have a ``fingerprint``; ``since`` and ``until``, the first
        and the last end, and ``date``, that of the last.
    """
    return (
        attempts.withColumn("size", decade(F.col("payload_bytes")))
        .groupBy(*KEYS)
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.count("fingerprint").alias("fingerprints"),
            F.min("ended_at").alias("since"),
            F.max("ended_at").alias("until"),
            F.max("date").alias("date"),
        )
    )
