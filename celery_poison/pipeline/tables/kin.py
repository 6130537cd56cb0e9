"""Attempts that have to do with a trouble: a few in a hundred, of which most questions are asked."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import ended_alive

KIN = (
    "token",
    "id",
    "fingerprint",
    "task",
    "queue",
    "host",
    "release",
    "shape",
    "started_at",
    "ended_at",
    "seq",
    "date",
    "end",
    "outcome",
    "blame",
    "proof",
    "death",
    "incident",
    "cause",
    "crashes",
    "payload_bytes",
    "runtime_ms",
)


def kin(attempts: DataFrame, exceptions: DataFrame | None = None) -> DataFrame:
    """Return the attempts that have to do with a trouble; of their columns :data:`KIN`.

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
        attempts.select(*KIN)
        .join(troubled.withColumn("_troubled", yes), "id", "left")
        .join(died.withColumn("_died", yes), "fingerprint", "left")
        .where(F.col("_troubled") | F.col("_died"))
        .select(*KIN)
    )
