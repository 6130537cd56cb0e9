"""The part of a history that depends on the policy, out of Spark."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.backtest.replay import Step
from celery_poison.pipeline.tables.attempts import ended_alive
from celery_poison.pipeline.tables.fingerprints import marked


def concerned(attempts: DataFrame, asked: DataFrame | None = None) -> DataFrame:
    """Return the attempts of every message that ever ended in trouble, or looks like one that is guilty.

    Args:
        asked: what ``tables.marked`` found in them, where that is kept already.
    """
    asked = marked(attempts) if asked is None else asked
    alive = ended_alive(F.col("end"), F.col("outcome"))
    troubled = attempts.where(~alive | (F.col("end") == "rolled_back")).select("id").distinct()
    guilty = (
        attempts.where("end = 'crashed' and proof = 'proven' and fingerprint is not null")
        .select("fingerprint")
        .distinct()
    )
    alike = asked.join(F.broadcast(guilty), "fingerprint", "left_semi").select("id").distinct()
    return attempts.join(F.broadcast(troubled.union(alike).distinct()), "id", "left_semi")


def steps(attempts: DataFrame, asked: DataFrame | None = None) -> list[Step]:
    """Return the steps of all :func:`concerned` messages, by the time of their end."""
    alive = ended_alive(F.col("end"), F.col("outcome")) & (F.col("end") == "finished")
    rows = (
        concerned(attempts, asked)
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
    """Return for each limit how many messages, beside those in ``steps``, are larger and ended alive."""
    alive = attempts.where(ended_alive(F.col("end"), F.col("outcome")))
    larger = [
        F.count_distinct(F.when(F.col("payload_bytes") > limit, F.col("id"))).alias(str(limit))
        for limit in limits
    ]
    row = alive.where(F.col("payload_bytes") > min(limits)).agg(*larger).collect()[0]
    ours = {
        limit: len({s.id for s in steps if s.end == "alive" and s.payload_bytes > limit}) for limit in limits
    }
    return {limit: row[str(limit)] - ours[limit] for limit in limits}
