"""What the report shows, as plain data that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.backtest.grid import Recommendation, say
from celery_poison.pipeline.backtest.replay import Outcome

#: How many of each dimension are shown.
TOP = 12


def gather(
    attempts: DataFrame,
    incidents: DataFrame,
    blame: DataFrame,
    *,
    measures: DataFrame | None = None,
    anomalies: DataFrame | None = None,
    outcomes: Sequence[Outcome] = (),
    recommended: Recommendation | None = None,
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Return everything that the page shows.

    Args:
        attempts, incidents, blame: the tables, better read from where they are stored than computed anew.
        left_out: sentences on what the lake could not read.
    """
    deaths = attempts.where("end = 'crashed'")
    return {
        "totals": _rows(
            attempts.agg(
                F.count(F.lit(1)).alias("attempts"),
                F.count_if(F.col("end") == "crashed").alias("deaths"),
                F.count_if(F.col("proof") == "cleared").alias("cleared"),
                F.count_distinct("task").alias("tasks"),
                F.min("ended_at").alias("since"),
                F.max("ended_at").alias("until"),
            )
        )[0],
        "days": _rows(incidents.groupBy("date", "kind").agg(F.count(F.lit(1)).alias("n")).orderBy("date")),
        "recovery": _rows(
            incidents.where("recovery_ms is not null")
            .groupBy("date")
            .agg(
                F.percentile("recovery_ms", 0.5).alias("median"),
                F.max("recovery_ms").alias("longest"),
                F.count(F.lit(1)).alias("n"),
            )
            .orderBy("date")
        ),
        "hours": _rows(
            deaths.groupBy("task", F.hour("ended_at").alias("hour")).agg(
                F.count_if(F.col("proof") != "cleared").alias("n")
            )
        ),
        "blame": _rows(
            blame.where(F.col("rank") <= TOP).orderBy("dimension", "rank", "key").where("failed > 0")
        ),
        "innocent": _rows(
            blame.where("standing = 'bystander' and dimension in ('task', 'fingerprint')")
            .groupBy("dimension")
            .agg(F.count(F.lit(1)).alias("n"), F.sum("cleared").alias("cleared"))
        ),
        "measures": _rows(measures.orderBy("top", "measure")) if measures is not None else [],
        "anomalies": _rows(anomalies.limit(50)) if anomalies is not None else [],
        "backtest": [_outcome(told) for told in outcomes],
        "recommended": _recommended(recommended),
        "left_out": [*left_out],
    }


def _outcome(told: Outcome) -> dict[str, Any]:
    row = asdict(told)
    row["wrong_blocks"] = sorted(told.wrong_blocks)
    return {**row, "policy": asdict(told.policy), "says": say(told.policy)}


def _recommended(told: Recommendation | None) -> dict[str, Any] | None:
    if told is None:
        return None
    return {"policy": asdict(told.policy), "says": say(told.policy), "reasons": [*told.reasons]}


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [{name: _plain(value) for name, value in row.asDict().items()} for row in frame.collect()]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
