"""Who kills workers, by the method that finds faults in programs: spectrum-based localisation (NEW-7).

A *run* of the spectrum is one attempt that ended alive (it passed), or one death (it failed) together with
all who were in it. An *element* is what may be to blame: a fingerprint, a task, a form of arguments, a
payload size, a host, a release. Of each element is counted in how many deaths it was and how many runs of it
passed; the measures make one number of these two. docs/pipeline-tables.md has definitions and sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from celery_poison.pipeline import beta
from celery_poison.pipeline.tables.attempts import ended_alive

#: What may be to blame. ``shape`` and ``payload`` are those of one task.
DIMENSIONS = ("fingerprint", "task", "shape", "payload", "host", "release")
MEASURES = ("ochiai", "tarantula", "dstar", "jaccard")

_SIZES = ("under 1 kB", "1-10 kB", "10-100 kB", "100 kB-1 MB", "1-10 MB", "10-100 MB", "100 MB or more")


def payload_bucket(size: Column) -> Column:
    """Return the decade of a size in bytes, in words; null stays null."""
    bucket = F.when(size < 1000, _SIZES[0])
    for power, name in enumerate(_SIZES[1:-1], start=4):
        bucket = bucket.when(size < 10**power, name)
    return bucket.when(size.isNotNull(), _SIZES[-1])


def elements(attempts: DataFrame) -> DataFrame:
    """Return ``attempts`` with one column for each of :data:`DIMENSIONS`: the key of its element, or null."""
    shape = F.concat("task", F.lit("("), "shape", F.lit(")"))
    payload = F.concat("task", F.lit(" "), payload_bucket(F.col("payload_bytes")))
    return attempts.withColumns({"shape": shape, "payload": payload})


def spectrum(attempts: DataFrame, *, trials: bool = True) -> DataFrame:
    """Count each element that was in at least one death.

    Args:
        trials: take out of a death whom its trial cleared. False: as if nobody had been tried.

    Returns:
        ``dimension, key, failed, passed, cleared, proven, guilt, failed_total, passed_total``: deaths it was
        in; its runs that ended alive; of its suspects, those whom a trial cleared and those who were proven
        guilty; deaths, each divided by those who may be guilty of it; all deaths and all runs alive in which
        the dimension is known.
    """
    known = elements(attempts)
    suspects = known.where("end = 'crashed'")
    passed = known.where(ended_alive(F.col("end"), F.col("outcome")))
    held = _shares(suspects, trials)
    blamed = (
        _long(suspects.withColumn("share", F.lit(0.0)))
        .groupBy("dimension", "key")
        .agg(
            F.count(F.when(F.col("proof") == "cleared", True)).alias("cleared"),
            F.count(F.when(F.col("proof") == "proven", True)).alias("proven"),
        )
    )
    deaths = _long(held)
    failed = deaths.groupBy("dimension", "key").agg(
        F.countDistinct("death").alias("failed"), F.sum("share").alias("guilt")
    )
    all_deaths = deaths.groupBy("dimension").agg(F.countDistinct("death").alias("failed_total"))
    ran = _passed(passed, blamed)
    totals = all_deaths.join(_passed_totals(passed), "dimension", "full")
    none = F.lit(0).cast("long")
    return (
        blamed.join(failed, ["dimension", "key"], "left")
        .join(ran, ["dimension", "key"], "left")
        .join(F.broadcast(totals), "dimension")
        .select(
            "dimension",
            "key",
            *(F.coalesce(name, none).alias(name) for name in ("failed", "passed", "cleared", "proven")),
            F.coalesce("guilt", F.lit(0.0)).alias("guilt"),
            *(F.coalesce(name, none).alias(name) for name in ("failed_total", "passed_total")),
        )
    )


def score(spectrum: DataFrame) -> DataFrame:
    """Add the measures and, within each dimension, the rank by Ochiai (1: most suspicious; equals alike)."""
    measured = spectrum.withColumns(
        {
            "ochiai": ochiai(F.col("failed"), F.col("passed"), F.col("failed_total")),
            "tarantula": tarantula(
                F.col("failed"), F.col("passed"), F.col("failed_total"), F.col("passed_total")
            ),
            "dstar": dstar(F.col("failed"), F.col("passed"), F.col("failed_total")),
            "jaccard": jaccard(F.col("failed"), F.col("passed"), F.col("failed_total")),
        }
    )
    order = Window.partitionBy("dimension").orderBy(F.desc("ochiai"))
    return estimate(measured).withColumn("rank", F.rank().over(order))


def estimate(spectrum: DataFrame) -> DataFrame:
    """Add ``rate``, the share of its runs that kill, the interval around it (95 %), and ``standing``.

    A beta distribution: Jeffreys' prior, deaths by ``guilt``, runs alive by ``passed``. ``standing`` is
    ``guilty`` (a death alone proves it), ``bystander`` (trials cleared it of everything) or ``suspect``.
    """
    quantile = F.udf(_remembered(), "double", useArrow=False)
    deadly, calm = F.col("guilt") + 0.5, F.col("passed") + 0.5
    low, high = (quantile(F.lit(part), deadly, calm.cast("double")) for part in (0.025, 0.975))
    standing = F.when(F.col("proven") > 0, "guilty").when(F.col("failed") == 0, "bystander")
    return spectrum.withColumns(
        {
            "rate": deadly / (deadly + calm),
            "rate_low": low,
            "rate_high": high,
            "standing": standing.otherwise("suspect"),
        }
    )


def _remembered() -> Callable[[float, float, float], float]:
    """Return ``beta.quantile``, to be sent as it is to executors that have not got this package."""
    cloudpickle.register_pickle_by_value(beta)
    known: dict[tuple[float, float, float], float] = {}

    def quantile(part: float, deadly: float, calm: float) -> float:
        # Most elements share a few pairs of small counts.
        key = part, deadly, calm
        if key not in known:
            known[key] = beta.quantile(*key)
        return known[key]

    return quantile


def compare(attempts: DataFrame, tops: Sequence[int] = (5, 10, 20, 50, 100)) -> DataFrame:
    """Say how well each measure finds, without any trial, the fingerprints that trials proved to be deadly.

    Deadly is a fingerprint that died alone and never ended alive. What is at the top of a ranking is compared
    with that, at each of ``tops`` and at the number of deadly ones.

    Returns:
        ``measure, top, deadly, found, precision, recall``.
    """
    told = score(spectrum(attempts, trials=False)).where("dimension = 'fingerprint'")
    told = told.withColumn("guilty", (F.col("proven") > 0) & (F.col("passed") == 0)).persist()
    ranked = [_ranked(told, measure) for measure in (*MEASURES, "rate_low")]
    whole = ranked[0]
    for each in ranked[1:]:
        whole = whole.unionByName(each)
    counts = F.array(*(F.lit(top).cast("long") for top in tops), F.col("deadly"))
    found = F.count(F.when(F.col("guilty"), True))
    return (
        whole.where("deadly > 0")
        .withColumn("top", F.explode(F.array_distinct(counts)))
        .where("place <= top")
        .groupBy("measure", "top", "deadly")
        .agg(found.alias("found"), F.count(F.lit(1)).alias("taken"))
        .select(
            "measure",
            "top",
            "deadly",
            "found",
            (F.col("found") / F.col("taken")).alias("precision"),
            (F.col("found") / F.col("deadly")).alias("recall"),
        )
    )


def _ranked(told: DataFrame, measure: str) -> DataFrame:
    # The key decides between equals, so that two runs say the same.
    order = Window.partitionBy("dimension").orderBy(F.desc(measure), "key")
    return told.select(
        F.lit(measure).alias("measure"),
        F.row_number().over(order).alias("place"),
        F.count(F.when(F.col("guilty"), True)).over(Window.partitionBy("dimension")).alias("deadly"),
        "guilty",
    )


def _shares(suspects: DataFrame, trials: bool) -> DataFrame:
    """Divide each death by those who may be guilty of it; whom a trial cleared is left out."""
    each = Window.partitionBy("death")
    if not trials:
        return suspects.withColumn("share", 1 / F.count(F.lit(1)).over(each))
    held = suspects.where("proof != 'cleared'")
    proven = F.col("proof") == "proven"
    known = F.count(F.when(proven, True)).over(each)
    share = F.when(known == 0, 1 / F.count(F.lit(1)).over(each)).when(
        proven, F.lit(1.0) / F.greatest(known, F.lit(1))
    )
    return held.withColumn("share", share.otherwise(0.0))


def ochiai(failed: Column, passed: Column, failed_total: Column) -> Column:
    """``failed / sqrt(failed_total * (failed + passed))``: 0 to 1; 0 where nothing failed."""
    product = failed_total.cast("double") * (failed + passed)
    return F.when(failed > 0, failed / F.sqrt(product)).otherwise(0.0)


def tarantula(failed: Column, passed: Column, failed_total: Column, passed_total: Column) -> Column:
    """The share of deaths it is in, against that and its share of the runs alive: 0 to 1."""
    of_failed = failed / failed_total
    of_passed = F.when(passed_total > 0, passed / passed_total).otherwise(0.0)
    return F.when(failed > 0, of_failed / (of_failed + of_passed)).otherwise(0.0)


def dstar(failed: Column, passed: Column, failed_total: Column) -> Column:
    """D*2: ``failed**2 / (passed + failed_total - failed)``; infinite where it alone explains all."""
    rest = passed + failed_total - failed
    infinite = F.lit(float("inf"))
    square = failed.cast("double") * failed
    return F.when(failed == 0, 0.0).when(rest == 0, infinite).otherwise(square / F.nullif(rest, F.lit(0)))


def jaccard(failed: Column, passed: Column, failed_total: Column) -> Column:
    """``failed / (failed_total + passed)``: 0 to 1."""
    return F.when(failed > 0, failed / (failed_total + passed)).otherwise(0.0)


def _long(known: DataFrame) -> DataFrame:
    """One row for each element of each attempt; for few rows only."""
    pairs = F.array(*(F.struct(F.lit(d).alias("dimension"), F.col(d).alias("key")) for d in DIMENSIONS))
    each = known.select("death", "proof", "share", F.explode(pairs).alias("e"))
    return each.select("death", "proof", "share", "e.dimension", "e.key").where("key is not null")


def _passed(passed: DataFrame, blamed: DataFrame) -> DataFrame:
    """Count the runs alive of what was in a death. Few of many fingerprints were, so the others go first."""
    asked = F.broadcast(blamed.where("dimension = 'fingerprint'").select(F.col("key").alias("fingerprint")))
    fingerprints = passed.select("fingerprint").join(asked, "fingerprint", "left_semi")
    counted = [_counted(fingerprints.groupBy("fingerprint").count(), "fingerprint")]
    cube = _cube(passed)
    counted += [_counted(cube, name) for name in DIMENSIONS[1:]]
    whole = counted[0]
    for each in counted[1:]:
        whole = whole.unionByName(each)
    return whole


def _counted(groups: DataFrame, name: str) -> DataFrame:
    known = groups.where(F.col(name).isNotNull())
    key = F.col(name).alias("key")
    return (
        known.groupBy(key)
        .agg(F.sum("count").alias("passed"))
        .select(F.lit(name).alias("dimension"), "key", "passed")
    )


def _cube(passed: DataFrame) -> DataFrame:
    """Count by everything that has few values at once: a single pass over the runs."""
    return passed.groupBy(*DIMENSIONS[1:]).count()


def _passed_totals(passed: DataFrame) -> DataFrame:
    known = passed.agg(*(F.count(name).alias(name) for name in DIMENSIONS))
    pairs = F.array(
        *(F.struct(F.lit(d).alias("dimension"), F.col(d).alias("passed_total")) for d in DIMENSIONS)
    )
    return known.select(F.explode(pairs).alias("e")).select("e.dimension", "e.passed_total")
