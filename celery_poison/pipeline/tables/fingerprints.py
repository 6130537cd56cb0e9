"""One row for each fingerprint that was in a death."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import ended_alive


def fingerprints(attempts: DataFrame) -> DataFrame:
    """Return one row per fingerprint with a death: how its messages fared, and whether it is always deadly.

    Args:
        attempts: what :func:`attempts` returns, or :func:`kin`, which is far less.
    """
    alive, death = ended_alive(F.col("end"), F.col("outcome")), F.col("end") == "crashed"
    died = attempts.where(death & F.col("fingerprint").isNotNull()).select("fingerprint").distinct()
    theirs = attempts.join(died, "fingerprint", "left_semi")
    # By themselves: beside text Spark sorts all rows before it adds anything up.
    names = theirs.select("fingerprint", "task", "shape").distinct().groupBy("fingerprint")
    # By message first: counting different ones beside all else would take each row twice.
    messages = theirs.groupBy("fingerprint", "id").agg(
        F.min("started_at").alias("first_at"),
        F.max("ended_at").alias("last_at"),
        F.count(F.lit(1)).alias("attempts"),
        _count(death).alias("deaths"),
        _count(F.col("proof") == "proven").alias("proven"),
        # Alone, and a candidate already: that was its trial.
        _count((F.col("blame") == "exact") & (F.col("crashes") > 1)).alias("tried"),
        _count(F.col("proof") == "cleared").alias("cleared"),
        _count(alive).alias("alive"),
    )
    counts = messages.groupBy("fingerprint").agg(
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
        F.count("id").alias("messages"),
        F.sum("attempts").alias("attempts"),
        F.sum("deaths").alias("deaths"),
        F.sum("proven").alias("proven"),
        F.count(F.when(F.col("tried") > 0, F.col("id"))).alias("guilty_messages"),
        F.sum("cleared").alias("cleared"),
        F.sum("alive").alias("alive"),
    )
    return names.agg(F.max("task").alias("task"), F.max("shape").alias("shape")).join(counts, "fingerprint")


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, True))
