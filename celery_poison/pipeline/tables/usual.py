"""What runs that ended alive usually take, of each task."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import ended_alive

MEASURES = {"payload": "payload_bytes", "duration": "runtime_ms", "memory": "memory_kb"}
#: Of a task with more runs alive than this, about so many tell their medians.
SAMPLE = 20_000


def usual(attempts: DataFrame, counted: DataFrame) -> DataFrame:
    """Return points whose median, each taken ``n`` times, is that of all runs of a task that ended alive.

    Args:
        counted: what :func:`tallies` made of the same attempts.

    Returns:
        ``task, measure, value, n``, for each of :data:`MEASURES`.
    """
    runs = counted.where(_alive()).groupBy("task").agg(F.sum("n").alias("_alive"))
    # Drawn by the token, so that two runs say the same.
    drawn = F.pmod(F.xxhash64("token"), F.col("_alive")) < SAMPLE
    asked = attempts.where(_alive()).join(F.broadcast(runs), "task").where(drawn)
    medians = asked.groupBy("task").agg(
        *(F.percentile_approx(column, 0.5, 1000).alias(name) for name, column in MEASURES.items())
    )
    each = F.array(*(F.struct(F.lit(name).alias("measure"), F.col(name).alias("value")) for name in MEASURES))
    return (
        medians.select("task", F.explode(each).alias("m"))
        .select("task", "m.measure", "m.value", F.lit(1).cast("long").alias("n"))
        .where("value is not null")
    )


def _alive() -> Column:
    return ended_alive(F.col("end"), F.col("outcome"))
