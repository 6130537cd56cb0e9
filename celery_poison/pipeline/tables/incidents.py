"""One row for each death, of a whole worker or of one of its processes; and one for each message."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import ENDS, count, host_of, ran_ms, started

_PUT_BACK = r"^flagged (\d+), put back (\d+)"
_COUNTS = ("suspects", "interrupted", "proven", "cleared", "open")
_LISTS = ("tasks", "culprit_tasks", "culprit_fingerprints")


def incidents(journal: DataFrame, attempts: DataFrame) -> DataFrame:
    """Return one row per death: who was suspect, what the trials said, how long the recovery took.

    Args:
        journal: as ``celery_poison.pipeline.schema.JOURNAL``.
        attempts: what :func:`attempts` made of the same journal.
    """
    none, nobody = F.lit(0).cast("long"), F.array().cast("array<string>")
    found = _of_workers(journal).unionByName(_of_processes(attempts), allowMissingColumns=True)
    return found.join(_of_members(attempts), "death", "left").select(
        *("death", "kind", "worker"),
        host_of(F.col("worker")).alias("host"),
        *("cause", "noticed_by", "at", "date", "recovered_at"),
        (F.unix_millis("recovered_at") - F.unix_millis("at")).alias("recovery_ms"),
        *("flagged", "put_back"),
        *(F.coalesce(name, none).alias(name) for name in _COUNTS),
        *(F.coalesce(name, nobody).alias(name) for name in _LISTS),
        "longest_ms",
    )


def _of_members(attempts: DataFrame) -> DataFrame:
    ended, proof = F.col("end"), F.col("proof")
    members = attempts.withColumn("death", F.coalesce("death", "incident"))
    return (
        members.where(ended.isin("crashed", "interrupted") & F.col("death").isNotNull())
        .groupBy("death")
        .agg(
            count(ended == "crashed").alias("suspects"),
            count(ended == "interrupted").alias("interrupted"),
            *(count(proof == name).alias(name) for name in ("proven", "cleared", "open")),
            _names(F.when(ended == "crashed", F.col("task"))).alias("tasks"),
            _names(F.when(proof == "proven", F.col("task"))).alias("culprit_tasks"),
            _names(F.when(proof == "proven", F.col("fingerprint"))).alias("culprit_fingerprints"),
            F.max("runtime_ms").alias("longest_ms"),
        )
    )


def _names(column: Column) -> Column:
    return F.sort_array(F.collect_set(column))


def _of_workers(journal: DataFrame) -> DataFrame:
    """A worker declared dead; where the journal lost that entry, the others of its incident tell it."""
    lost, over = F.col("event") == "worker_lost", F.col("event") == "failover_finished"
    ended = F.col("event").isin("crashed", "interrupted")
    told = journal.where((lost | over | ended) & F.col("incident").isNotNull())
    return told.groupBy(F.col("incident").alias("death")).agg(
        F.lit("worker").alias("kind"),
        F.max("worker").alias("worker"),
        F.max(F.when(lost, F.col("cause"))).alias("cause"),
        F.max(F.when(lost, F.col("note"))).alias("noticed_by"),
        F.min("at").alias("at"),
        F.min("date").alias("date"),
        F.max(F.when(over, F.col("at"))).alias("recovered_at"),
        F.max(F.when(over, _number(1))).alias("flagged"),
        F.max(F.when(over, _number(2))).alias("put_back"),
    )


def _number(group: int) -> Column:
    return F.regexp_extract("note", _PUT_BACK, group).try_cast("long")


def _of_processes(attempts: DataFrame) -> DataFrame:
    died = attempts.where((F.col("end") == "crashed") & F.col("incident").isNull())
    return died.groupBy("death").agg(
        F.lit("process").alias("kind"),
        F.max("worker").alias("worker"),
        F.max("cause").alias("cause"),
        F.min("ended_at").alias("at"),
        F.min("date").alias("date"),
    )


def messages(journal: DataFrame) -> DataFrame:
    """Return one row per message (``mid``): how often it ran and died, what that cost, and its last state.

    Args:
        journal: as ``celery_poison.pipeline.schema.JOURNAL``, every entry once.
    """
    end = F.col("event").isin(*ENDS)
    died, kept = F.col("event") == "crashed", F.col("event") == "quarantined"
    ran = F.when(end, ran_ms())
    return (
        journal.where("mid is not null and at is not null")
        .groupBy("mid")
        .agg(
            *map(_last, ("id", "task", "queue")),
            F.min(started()).alias("first_at"),
            F.max("at").alias("last_at"),
            F.count_distinct(F.when(end, F.col("token"))).alias("starts"),
            F.count_distinct(F.when(died, F.col("token"))).alias("deaths"),
            F.count(F.when(F.col("event").isin("interrupted", "rolled_back"), True)).alias("put_back"),
            F.count(F.when(F.col("event") == "released", True)).alias("releases"),
            F.coalesce(F.sum(ran), F.lit(0)).alias("runtime_ms"),
            F.coalesce(F.sum(F.when(died, ran)), F.lit(0)).alias("lost_ms"),
            F.max("payload_bytes").alias("payload_bytes"),
            *map(_last, ("fingerprint", "state")),
            F.max_by(F.when(kept, F.col("cause")), _when(kept)).alias("cause"),
            F.max_by(F.when(kept, F.col("note")), _when(kept)).alias("reason"),
        )
    )


def _last(name: str) -> Column:
    return F.max_by(name, _when(F.col(name).isNotNull())).alias(name)


def _when(condition: Column) -> Column:
    return F.when(condition, F.struct("at", "seq"))
