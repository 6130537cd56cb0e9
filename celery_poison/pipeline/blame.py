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
from celery_poison.pipeline.tables.fingerprints import fingerprints
from celery_poison.pipeline.tables.tallies import decade, tallies

#: What may be to blame. ``shape`` and ``payload`` are those of one task.
DIMENSIONS = ("fingerprint", "task", "shape", "payload", "host", "release")
MEASURES = ("ochiai", "tarantula", "dstar", "jaccard")

_SIZES = ("under 1 kB", "1-10 kB", "10-100 kB", "100 kB-1 MB", "1-10 MB", "10-100 MB", "100 MB or more")


def elements(attempts: DataFrame) -> DataFrame:
    """Return ``attempts`` with one column for each of :data:`DIMENSIONS`: the key of its element, or null."""
    return _named(attempts.withColumn("size", decade(F.col("payload_bytes"))))


def _named(sized: DataFrame) -> DataFrame:
    shape = F.concat("task", F.lit("("), "shape", F.lit(")"))
    sizes = F.array(*(F.lit(name) for name in _SIZES))
    payload = F.concat("task", F.lit(" "), F.get(sizes, "size"))
    return sized.withColumns({"shape": shape, "payload": payload})


def spectrum(attempts: DataFrame, *, trials: bool = True, alive: DataFrame | None = None) -> DataFrame:
    """Count each element that was in at least one death.

    Args:
        trials: take out of a death whom its trial cleared. False: as if nobody had been tried.
        alive: what :func:`runs_alive` made of the same attempts, where it is there already.

    Returns:
        ``dimension, key, failed, passed, cleared, proven, guilt, failed_total, passed_total``: deaths it was
        in; its runs that ended alive; of its suspects, those whom a trial cleared and those who were proven
        guilty; deaths, each divided by those who may be guilty of it; all deaths and all runs alive in which
        the dimension is known.
    """
    alive = runs_alive(attempts) if alive is None else alive
    members = _long(_shares(elements(attempts).where("end = 'crashed'"), trials))
    deaths = members.groupBy("dimension", "key", "death").agg(
        F.max(F.col("held").cast("long")).alias("failed"),
        F.sum("share").alias("guilt"),
        F.count(F.when(F.col("proof") == "cleared", True)).alias("cleared"),
        F.count(F.when(F.col("proof") == "proven", True)).alias("proven"),
    )
    of_all = deaths.where("failed > 0").select("dimension", "death").distinct()
    # What is added up comes in one form and without a key where it is of all: so it is shuffled once.
    whole = (
        _counted(deaths, "failed", "guilt", "cleared", "proven", died=F.lit(1))
        .unionByName(_counted(of_all, key=F.lit(None), failed=F.lit(1)))
        .unionByName(_counted(alive, "passed"))
        .groupBy("dimension", "key")
        .agg(*(F.sum(name).alias(name) for name in (*_COUNTS, "died")))
    )
    each = Window.partitionBy("dimension")
    total = {
        f"{name}_total": F.coalesce(F.max(F.when(F.col("key").isNull(), F.col(name))).over(each), F.lit(0))
        for name in ("failed", "passed")
    }
    return whole.withColumns(total).where("key is not null and died > 0").drop("died")


_COUNTS = {"failed": "long", "passed": "long", "cleared": "long", "proven": "long", "guilt": "double"}


def _counted(rows: DataFrame, *names: str, **given: Column) -> DataFrame:
    """Return rows in the form in which they are added up; what they do not tell is 0."""
    given = {"key": F.col("key"), "died": F.lit(0), **given, **{name: F.col(name) for name in names}}
    counts = {**_COUNTS, "died": "long"}
    columns = (given.get(name, F.lit(0)).cast(kind).alias(name) for name, kind in counts.items())
    return rows.select("dimension", given["key"].cast("string").alias("key"), *columns)


def runs_alive(
    attempts: DataFrame, counted: DataFrame | None = None, died: DataFrame | None = None
) -> DataFrame:
    """Count the runs that ended alive.

    Args:
        counted, died: what ``tallies`` and ``fingerprints`` made of the same attempts, where that is there.

    Returns:
        ``dimension, key, passed``: of each element, fingerprints only if they were in a death; and, where
        ``key`` is null, of all in which the dimension is known.
    """
    counted = tallies(attempts) if counted is None else counted
    passed = _named(counted.where(ended_alive(F.col("end"), F.col("outcome"))))
    # Few of many fingerprints were in a death: the others are in the total only.
    died = fingerprints(attempts) if died is None else died
    bearers = died.select(
        F.lit("fingerprint").alias("dimension"), F.col("fingerprint").alias("key"), F.col("alive").alias("n")
    )
    others = passed.select("n", F.explode(_pairs(DIMENSIONS[1:])).alias("e")).select(
        "e.dimension", "e.key", "n"
    )
    known = bearers.unionByName(others).where("key is not null")
    each = known.groupBy("dimension", "key").agg(F.sum("n").alias("passed"))
    return each.unionByName(_totals(passed))


def _totals(passed: DataFrame) -> DataFrame:
    every = {name: F.when(F.col(name).isNotNull(), F.col("n")) for name in DIMENSIONS[1:]}
    sums = [F.sum(column).alias(name) for name, column in every.items()]
    known = passed.agg(F.sum("fingerprints").alias("fingerprint"), *sums)
    nothing = F.lit(None).cast("string").alias("key")
    whole = known.select(F.explode(_pairs(DIMENSIONS)).alias("e"))
    return whole.select("e.dimension", nothing, F.col("e.key").alias("passed"))


def _pairs(names: Sequence[str]) -> Column:
    return F.array(*(F.struct(F.lit(name).alias("dimension"), F.col(name).alias("key")) for name in names))


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


def compare(
    attempts: DataFrame, tops: Sequence[int] = (5, 10, 20, 50, 100), alive: DataFrame | None = None
) -> DataFrame:
    """Say how well each measure finds, without any trial, the fingerprints that trials proved to be deadly.

    Deadly is a fingerprint that died alone and never ended alive. What is at the top of a ranking is compared
    with that, at each of ``tops`` and at the number of deadly ones.

    Returns:
        ``measure, top, deadly, found, precision, recall``.
    """
    told = score(spectrum(attempts, trials=False, alive=alive)).where("dimension = 'fingerprint'")
    names = (*MEASURES, "rate_low")
    values = F.array(*(F.struct(F.lit(name).alias("measure"), F.col(name).alias("value")) for name in names))
    guilty = (F.col("proven") > 0) & (F.col("passed") == 0)
    each = told.select("key", guilty.alias("guilty"), F.explode(values).alias("m")).select(
        "key", "guilty", "m.*"
    )
    of_measure = Window.partitionBy("measure")
    # The key decides between equals, so that two runs say the same.
    order = of_measure.orderBy(F.desc("value"), "key")
    found = F.count(F.when(F.col("guilty"), True))
    ranked = each.withColumns({"place": F.row_number().over(order), "deadly": found.over(of_measure)})
    counts = F.array(*(F.lit(top).cast("long") for top in tops), F.col("deadly"))
    return (
        ranked.where("deadly > 0")
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


def _shares(suspects: DataFrame, trials: bool) -> DataFrame:
    """Divide each death by those who may be guilty of it; whom a trial cleared is not ``held``."""
    held = (F.col("proof") != "cleared") if trials else F.lit(True)
    proven = (F.col("proof") == "proven") if trials else F.lit(False)
    each = Window.partitionBy("death")
    told = suspects.withColumns({"held": held, "_proven": F.count(F.when(proven, True)).over(each)})
    among = F.when(F.col("_proven") > 0, proven).otherwise(F.col("held"))
    return told.withColumn("share", F.when(among, 1 / F.count(F.when(among, True)).over(each)).otherwise(0.0))


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
    columns = ("death", "proof", "held", "share")
    each = known.select(*columns, F.explode(_pairs(DIMENSIONS)).alias("e"))
    return each.select(*columns, "e.dimension", "e.key").where("key is not null")
