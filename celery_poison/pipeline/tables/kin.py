"""Attempts that have to do with a trouble: a few in a hundred, of which most questions are asked."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import ended_alive

#: A payload above this is asked for, too: the smallest limit that the back-test tries.
LARGE = 1_000_000
KIN = (
    "id",
    "fingerprint",
    "task",
    "shape",
    "started_at",
    "ended_at",
    "seq",
    "end",
    "outcome",
    "blame",
    "proof",
    "death",
    "incident",
    "cause",
    "payload_bytes",
    "runtime_ms",
)


def kin(attempts: DataFrame) -> DataFrame:
    """Return the attempts that have to do with a trouble; of their columns :data:`KIN`.

    All attempts of every task id of which one did not end alive or was rolled back; all that bear a
    fingerprint which was in a death; and all with more than :data:`LARGE` bytes.
    """
    alive = ended_alive(F.col("end"), F.col("outcome")) & (F.col("end") != "rolled_back")
    troubled = attempts.where(~alive & F.col("id").isNotNull()).select("id").distinct()
    died = attempts.where("end = 'crashed' and fingerprint is not null").select("fingerprint").distinct()
    yes = F.lit(True)
    return (
        attempts.select(*KIN)
        .join(F.broadcast(troubled.withColumn("_troubled", yes)), "id", "left")
        .join(F.broadcast(died.withColumn("_died", yes)), "fingerprint", "left")
        .where(F.col("_troubled") | F.col("_died") | (F.col("payload_bytes") > LARGE))
        .select(*KIN)
    )
