"""Attempts that have to do with a trouble, a few in a hundred, and one row for each deadly fingerprint."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import count, ended_alive

_NOT_KIN = (
    *("mid", "worker", "pid", "neighbours", "deliveries", "strikes", "failures", "memory_kb", "evidence"),
)


def kin(attempts: DataFrame, exceptions: DataFrame | None = None) -> DataFrame:
    """Return the attempts that have to do with a trouble; without some columns.

    All attempts of every task id of which one did not end alive or was rolled back, and all that bear a
    fingerprint which was in a death.

    Args:
        attempts: all, or those that ``company`` picked and the exceptions; of some days, if need be.
        exceptions: of all days, where ``attempts`` are not.
    """
    told = attempts if exceptions is None else exceptions
    alive = ended_alive(F.col("end"), F.col("outcome")) & (F.col("end") != "rolled_back")
    troubled = told.where(~alive & F.col("id").isNotNull()).select("id").distinct()
    died = told.where("end = 'crashed' and fingerprint is not null").select("fingerprint").distinct()
    yes = F.lit(True)
    return (
        attempts.drop(*_NOT_KIN)
        .join(troubled.withColumn("_troubled", yes), "id", "left")
        .join(died.withColumn("_died", yes), "fingerprint", "left")
        .where(F.col("_troubled") | F.col("_died"))
        .drop("_troubled", "_died")
    )


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
        count(death).alias("deaths"),
        count(F.col("proof") == "proven").alias("proven"),
        # Alone, and a candidate already: that was its trial.
        count((F.col("blame") == "exact") & (F.col("crashes") > 1)).alias("tried"),
        count(F.col("proof") == "cleared").alias("cleared"),
        count(alive).alias("alive"),
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
