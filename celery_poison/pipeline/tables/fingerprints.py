"""One row for each fingerprint that was in a death, and what it is added up from."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import count, ended_alive

_KEYS = ("date", "fingerprint", "task", "shape")
_COUNTS = ("attempts", "deaths", "proven", "tried", "cleared", "alive")


def fingerprints_daily(attempts: DataFrame) -> DataFrame:
    """Return how each fingerprint fared on each day; a message that died has a row of its own (``id``).

    Args:
        attempts: all, or those that have to do with a trouble, which are far fewer.
    """
    alive, death = ended_alive(F.col("end"), F.col("outcome")), F.col("end") == "crashed"
    # By message first: counting different ones beside all else would take each row twice.
    messages = (
        attempts.where("fingerprint is not null")
        .groupBy(*_KEYS, "id")
        .agg(
            F.min("started_at").alias("first_at"),
            F.max("ended_at").alias("last_at"),
            F.count(F.lit(1)).alias("attempts"),
            count(death).alias("deaths"),
            count(F.col("proof") == "proven").alias("proven"),
            # Alone, and a candidate already: that was its trial.
            count((F.col("blame") == "exact") & (F.col("crashes") > 1)).alias("tried"),
            count(F.col("proof") == "cleared").alias("cleared"),
            count(alive).alias("alive"),
        )
    )
    died = F.when(F.col("deaths") > 0, F.col("id")).alias("id")
    return messages.groupBy(*_KEYS, died).agg(F.count("id").alias("messages"), *_sums())


def fingerprints(daily: DataFrame) -> DataFrame:
    """Return one row per fingerprint with a death: how its messages fared, and whether it is always deadly.

    Args:
        daily: what :func:`fingerprints_daily` returns. A message that never died counts on each of its days.
    """
    messages = F.when(F.col("id").isNotNull(), 1).otherwise(F.sum("messages")).alias("messages")
    # Text in keys: beside text in sums Spark sorts all rows before it adds anything up.
    found = daily.groupBy(*_KEYS[1:], "id").agg(messages, *_sums())
    guilty = F.count(F.when(F.col("tried") > 0, F.col("id"))).alias("guilty_messages")
    names = (F.max(name).alias(name) for name in ("task", "shape"))
    sums = (F.sum("messages").alias("messages"), guilty, *_sums())
    return found.groupBy("fingerprint").agg(*names, *sums).where("deaths > 0").drop("tried")


def _sums() -> list[Column]:
    """Return the times and sums that add up."""
    times = [F.min("first_at").alias("first_at"), F.max("last_at").alias("last_at")]
    return [*times, *(F.sum(name).alias(name) for name in _COUNTS)]
