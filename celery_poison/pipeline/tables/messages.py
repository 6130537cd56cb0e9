"""One row for each message: its life and where it is now."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import ran_ms, started


def messages(journal: DataFrame) -> DataFrame:
    """Return one row per message (``mid``): how often it ran and died, what that cost, and its last state.

    Args:
        journal: as ``celery_poison.pipeline.schema.JOURNAL``, every entry once.
    """
    end = F.col("event").isin("finished", "crashed", "interrupted", "rolled_back")
    died, kept = F.col("event") == "crashed", F.col("event") == "quarantined"
    ran = F.when(end, ran_ms())
    return (
        journal.where("mid is not null and at is not null")
        .groupBy("mid")
        .agg(
            _last("id"),
            _last("task"),
            _last("queue"),
            F.min(started()).alias("first_at"),
            F.max("at").alias("last_at"),
            F.count_distinct(F.when(end, F.col("token"))).alias("starts"),
            F.count_distinct(F.when(died, F.col("token"))).alias("deaths"),
            F.count(F.when(F.col("event").isin("interrupted", "rolled_back"), True)).alias("put_back"),
            F.count(F.when(F.col("event") == "released", True)).alias("releases"),
            F.coalesce(F.sum(ran), F.lit(0)).alias("runtime_ms"),
            F.coalesce(F.sum(F.when(died, ran)), F.lit(0)).alias("lost_ms"),
            F.max("payload_bytes").alias("payload_bytes"),
            _last("fingerprint"),
            _last("state"),
            F.max_by(F.when(kept, F.col("cause")), _when(kept)).alias("cause"),
            F.max_by(F.when(kept, F.col("note")), _when(kept)).alias("reason"),
        )
    )


def _last(name: str) -> Column:
    return F.max_by(name, _when(F.col(name).isNotNull())).alias(name)


def _when(condition: Column) -> Column:
    return F.when(condition, F.struct("at", "seq"))
