"""The part of a history that depends on the policy, out of Spark."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.backtest.replay import Step
from celery_poison.pipeline.tables.attempts import ended_alive


def concerned(attempts: DataFrame) -> DataFrame:
    """Return the attempts of every task id that ever was in trouble, and those like a guilty one."""
    alive = ended_alive(F.col("end"), F.col("outcome")) & (F.col("end") != "rolled_back")
    guilty = attempts.where("end = 'crashed' and proof = 'proven' and fingerprint is not null")
    yes = F.lit(True)
    troubled = attempts.where(~alive & F.col("id").isNotNull()).select("id").distinct()
    alike = guilty.select("fingerprint").distinct()
    return (
        attempts.join(F.broadcast(troubled.withColumn("_troubled", yes)), "id", "left")
        .join(F.broadcast(alike.withColumn("_alike", yes)), "fingerprint", "left")
        .where(F.col("_troubled") | F.col("_alike"))
    )


def steps(attempts: DataFrame) -> list[Step]:
    """Return the steps of all :func:`concerned` messages, by the time of their end.

    Args:
        attempts: the table of that name, or ``tables.kin``, which is far less.
    """
    alive = ended_alive(F.col("end"), F.col("outcome")) & (F.col("end") == "finished")
    rows = (
        concerned(attempts)
        .select(
            "id",
            F.unix_millis("started_at"),
            F.unix_millis("ended_at"),
            F.when(alive, "alive").otherwise(F.col("end")),
            *(F.coalesce(name, F.lit("")) for name in ("blame", "proof", "death")),
            F.col("incident").isNotNull(),
            *(F.coalesce(name, F.lit("")) for name in ("cause", "fingerprint")),
            *(F.coalesce(name, F.lit(0)) for name in ("payload_bytes", "runtime_ms")),
            "seq",
        )
        .where("id is not null")
        .collect()
    )
    ordered = sorted(rows, key=lambda row: (row[2], row[-1]))
    return [Step(row[0], row[2] if row[1] is None else row[1], *row[2:-1]) for row in ordered]


def oversized(attempts: DataFrame, steps: Sequence[Step], limits: Sequence[int]) -> dict[int, int]:
    """Return for each limit how many messages, beside those in ``steps``, are larger and ended alive.

    Args:
        attempts: as above; with ``tables.kin`` no limit may be below ``tables.kin.LARGE``.
    """
    alive = attempts.where(ended_alive(F.col("end"), F.col("outcome")) & F.col("id").isNotNull())
    largest = alive.where(F.col("payload_bytes") > min(limits)).groupBy("id").agg(F.max("payload_bytes"))
    larger = (
        F.count(F.when(F.col("max(payload_bytes)") > limit, True)).alias(str(limit)) for limit in limits
    )
    row = largest.agg(*larger).collect()[0]
    ours = {
        limit: len({s.id for s in steps if s.end == "alive" and s.payload_bytes > limit}) for limit in limits
    }
    return {limit: row[str(limit)] - ours[limit] for limit in limits}
