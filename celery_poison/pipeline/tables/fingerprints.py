"""One row for each fingerprint that was in a death."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import ended_alive

_ASKED = ("fingerprint", "task", "shape", "started_at", "ended_at", "id", "end", "outcome", "proof")


def marked(attempts: DataFrame) -> DataFrame:
    """Return the attempts, dead or alive, that bear a fingerprint which was in a death."""
    known = attempts.where(F.col("fingerprint").isNotNull()).select(*_ASKED)
    died = known.where("end = 'crashed'").select("fingerprint").distinct()
    return known.join(F.broadcast(died), "fingerprint", "left_semi")


def fingerprints(attempts: DataFrame, asked: DataFrame | None = None) -> DataFrame:
    """Return one row per fingerprint with a death: how its messages fared, and whether it is always deadly.

    Args:
        attempts: what :func:`attempts` returns.
        asked: what :func:`marked` found in it, where that is kept already.
    """
    asked = marked(attempts) if asked is None else asked
    alive, death = ended_alive(F.col("end"), F.col("outcome")), F.col("end") == "crashed"
    return asked.groupBy("fingerprint").agg(
        F.max("task").alias("task"),
        F.max("shape").alias("shape"),
        F.min("started_at").alias("first_at"),
        F.max("ended_at").alias("last_at"),
        F.count_distinct("id").alias("messages"),
        F.count(F.lit(1)).alias("attempts"),
        _count(death).alias("deaths"),
        _count(F.col("proof") == "proven").alias("proven"),
        F.count_distinct(F.when(F.col("proof") == "proven", F.col("id"))).alias("guilty_messages"),
        _count(F.col("proof") == "cleared").alias("cleared"),
        _count(alive).alias("alive"),
    )


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, True))
