"""What the report shows, as plain data that JSON can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.backtest.grid import Recommendation
from celery_poison.pipeline.backtest.replay import Outcome
from celery_poison.pipeline.backtest.telling import as_dict, as_recommended
from celery_poison.pipeline.plain import plain_rows
from celery_poison.pipeline.tables.tallies import tallies

#: How many of each dimension are shown.
TOP = 12


def gather(
    attempts: DataFrame,
    incidents: DataFrame,
    blame: DataFrame,
    *,
    counted: DataFrame | None = None,
    measures: DataFrame | None = None,
    anomalies: DataFrame | None = None,
    outcomes: Sequence[Outcome] = (),
    recommended: Recommendation | None = None,
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Return everything that the page shows.

    Args:
        attempts, incidents, blame: the tables, better read from where they are stored than computed anew.
        counted: what ``tallies`` made of the attempts, where it is there already.
        left_out: sentences on what the lake could not read.
    """
    deaths = attempts.where("end = 'crashed'")
    counted, n = tallies(attempts) if counted is None else counted, F.col("n")
    return {
        "totals": plain_rows(
            counted.agg(
                _sum(n).alias("attempts"),
                _sum(F.when(F.col("end") == "crashed", n)).alias("deaths"),
                _sum(F.when(F.col("proof") == "cleared", n)).alias("cleared"),
                F.count_distinct("task").alias("tasks"),
                F.min("since").alias("since"),
                F.max("until").alias("until"),
            )
        )[0],
        "days": plain_rows(
            incidents.groupBy("date", "kind").agg(F.count(F.lit(1)).alias("n")).orderBy("date")
        ),
        "recovery": plain_rows(
            incidents.where("recovery_ms is not null")
            .groupBy("date")
            .agg(
                F.percentile("recovery_ms", 0.5).alias("median"),
                F.max("recovery_ms").alias("longest"),
                F.count(F.lit(1)).alias("n"),
            )
            .orderBy("date")
        ),
        "hours": plain_rows(
            deaths.groupBy("task", F.hour("ended_at").alias("hour")).agg(
                F.count_if(F.col("proof") != "cleared").alias("n")
            )
        ),
        "blame": plain_rows(
            blame.where(F.col("rank") <= TOP).orderBy("dimension", "rank", "key").where("failed > 0")
        ),
        "innocent": plain_rows(
            blame.where("standing = 'bystander' and dimension in ('task', 'fingerprint')")
            .groupBy("dimension")
            .agg(F.count(F.lit(1)).alias("n"), F.sum("cleared").alias("cleared"))
        ),
        "measures": plain_rows(measures.orderBy("top", "measure")) if measures is not None else [],
        "anomalies": plain_rows(anomalies.limit(50)) if anomalies is not None else [],
        "backtest": [as_dict(told) for told in outcomes],
        "recommended": recommended and as_recommended(recommended),
        "left_out": [*left_out],
    }


def _sum(column: Column) -> Column:
    return F.coalesce(F.sum(column), F.lit(0))
