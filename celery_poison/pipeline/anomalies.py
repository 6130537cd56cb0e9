"""What changed before or with the deaths: drifts, waves after a release, slower recoveries (NEW-7)."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import ended_alive
from celery_poison.pipeline.tables.tallies import tallies
from celery_poison.pipeline.tables.usual import MEASURES, usual

#: Fewer deaths, or incidents, say nothing.
LEAST = 8
#: How many times the usual counts as changed.
TIMES = 2.0


def anomalies(
    attempts: DataFrame,
    incidents: DataFrame,
    counted: DataFrame | None = None,
    points: DataFrame | None = None,
) -> DataFrame:
    """Return what stands out, the largest factor first.

    Args:
        counted, points: what ``tallies`` and ``usual`` made of the same attempts, where that is there.

    Returns:
        ``kind, key, date, value, usual, times, says``. ``payload``, ``duration`` and ``memory`` compare the
        median of what died of a task with what ended alive; ``release`` the share of a task's runs that died
        under one release with that under all others; ``recovery`` the median of a queue's last third of
        incidents with that of its first third. ``date`` is that of the last death.
    """
    counted = tallies(attempts) if counted is None else counted
    whole = (
        waves(counted).unionByName(slower(attempts, incidents)).unionByName(drifts(attempts, counted, points))
    )
    times = F.col("value") / F.col("usual")
    return (
        whole.where(F.col("usual") > 0)
        .withColumn("times", times)
        .where(F.col("times") >= TIMES)
        .select("kind", "key", "date", "value", "usual", "times", "says")
        .orderBy(F.desc("times"), "kind", "key")
    )


def drifts(attempts: DataFrame, counted: DataFrame, points: DataFrame | None = None) -> DataFrame:
    """Compare what died with what ended alive; whom a trial cleared died by chance and is left out."""
    dead = attempts.where(_guilty())
    died = dead.groupBy("task").agg(*(_died(measure).alias(measure) for measure in MEASURES))
    each = died.select("task", F.explode(F.array(*MEASURES)).alias("m")).where(F.col("m.n") >= LEAST)
    points = usual(attempts, counted) if points is None else points
    medians = points.groupBy("task", "measure").agg(F.percentile("value", 0.5, F.col("n")).alias("usual"))
    says = F.format_string("%s of the %d that died, against those that ended alive", "measure", "n")
    return (
        each.select("task", "m.*")
        .join(medians, ["task", "measure"])
        .select(
            F.col("measure").alias("kind"),
            F.col("task").alias("key"),
            "date",
            "value",
            "usual",
            says.alias("says"),
        )
    )


def _died(measure: str) -> Column:
    column = F.col(MEASURES[measure])
    return F.struct(
        F.lit(measure).alias("measure"),
        F.percentile_approx(column, 0.5, 1000).cast("double").alias("value"),
        F.count(column).alias("n"),
        F.max(F.when(column.isNotNull(), F.col("date"))).alias("date"),
    )


def waves(counted: DataFrame) -> DataFrame:
    """Compare a task's deaths under one release with those under all its others; takes ``tallies``."""
    none = F.lit(0).cast("long")
    by = (
        counted.where(F.col("release").isNotNull())
        .groupBy("task", "release")
        .agg(
            F.coalesce(F.sum(F.when(_guilty(), F.col("n"))), none).alias("died"),
            F.coalesce(F.sum(F.when(_guilty() | _alive(), F.col("n"))), none).alias("ran"),
            F.max(F.when(_guilty(), F.col("date"))).alias("date"),
        )
    )
    everything = by.groupBy("task").agg(F.sum("died").alias("all_died"), F.sum("ran").alias("all_ran"))
    others = F.col("all_ran") - F.col("ran")
    # Half a death more, so that none at all elsewhere is a small share and no division by nothing.
    usual = (F.col("all_died") - F.col("died") + 0.5) / F.greatest(others, F.lit(1))
    says = F.format_string("%d of %d runs died under this release", "died", "ran")
    return (
        by.join(everything, "task")
        .where((F.col("died") >= LEAST) & (others > 0))
        .select(
            F.lit("release").alias("kind"),
            F.concat("task", F.lit(" @ "), "release").alias("key"),
            "date",
            (F.col("died") / F.col("ran")).alias("value"),
            usual.alias("usual"),
            says.alias("says"),
        )
    )


def slower(attempts: DataFrame, incidents: DataFrame) -> DataFrame:
    """Compare each queue's last third of recoveries with its first."""
    whole = incidents.where("recovery_ms is not null").select("death", "at", "date", "recovery_ms")
    queues = attempts.where("incident is not null and end = 'crashed'").select("death", "queue").distinct()
    known = queues.join(whole, "death")
    spans = known.groupBy("queue").agg(
        F.min(F.unix_millis("at")).alias("since"), F.max(F.unix_millis("at")).alias("until")
    )
    part = (F.unix_millis("at") - F.col("since")) / F.greatest(F.col("until") - F.col("since"), F.lit(1))
    third = known.join(spans, "queue").withColumn("part", part)
    early, late = F.col("part") < 1 / 3, F.col("part") > 2 / 3
    found = third.groupBy("queue").agg(
        _median(late).alias("value"),
        _median(early).alias("usual"),
        F.least(F.count(F.when(early, True)), F.count(F.when(late, True))).alias("n"),
        F.max("date").alias("date"),
    )
    says = F.lit("milliseconds, the last third of its incidents against the first")
    return found.where(F.col("n") >= LEAST).select(
        F.lit("recovery").alias("kind"),
        F.col("queue").alias("key"),
        "date",
        "value",
        "usual",
        says.alias("says"),
    )


def _median(condition: Column) -> Column:
    return F.percentile(F.when(condition, F.col("recovery_ms")), 0.5)


def _guilty() -> Column:
    return (F.col("end") == "crashed") & F.coalesce(F.col("proof") == "proven", F.lit(False))


def _alive() -> Column:
    return ended_alive(F.col("end"), F.col("outcome"))
