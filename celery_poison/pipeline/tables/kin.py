"""Runs and attempts that have to do with a trouble: a few in a hundred, of which most questions are asked."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from celery_poison.pipeline.tables.attempts import beside, ended_alive, lone_deaths

#: A payload above this is asked for, too: the smallest limit that the back-test tries.
LARGE = 1_000_000
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


def company(
    runs: DataFrame,
    rest: DataFrame,
    small: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    before: DataFrame | None = None,
) -> DataFrame:
    """Return the runs that ended alive and that some trouble concerns.

    Those of a task id or a message that was ever in trouble; that bear a fingerprint which was in a death;
    that ran beside a process that died; whose message ended alive more than once; and those with more than
    :data:`LARGE` bytes.

    Args:
        runs, rest: entries of runs that ended alive, and all others.
        small: is given what has few rows, to compute it before it is joined: Spark takes it to be as large as
            ``runs``, and would sort all of them.
        before: further runs that ended alive; those of their messages are returned, too.
    """
    told = rest if before is None else rest.unionByName(before)
    died = rest.where("event = 'crashed'")
    hashes = runs.where("mid is not null").groupBy(F.xxhash64("mid").alias("hash"))
    twice = small(hashes.count().where("count > 1").select("hash"))
    near = small(beside(lone_deaths(died), runs, named="entry").select(F.col("run").alias("entry")))
    concerned, marked = F.coalesce(F.col("payload_bytes") > LARGE, F.lit(False)), runs
    for keys, key in (
        (_hashes(rest, "id"), "id"),
        (_hashes(told, "mid"), "mid"),
        (_hashes(died, "fingerprint"), "fingerprint"),
        (twice, "mid"),
        (_hashes(near, "entry"), "entry"),
    ):
        # Numbers are found several times faster than text. A run that only looks the same changes nothing.
        mark = f"_{len(marked.columns)}"
        marked = marked.join(keys.toDF(mark), F.xxhash64(key) == F.col(mark), "left")
        concerned |= F.col(mark).isNotNull()
    return marked.where(concerned).select(*runs.columns)


def _hashes(frame: DataFrame, key: str) -> DataFrame:
    return frame.where(F.col(key).isNotNull()).select(F.xxhash64(key).alias("hash")).distinct()


def kin(attempts: DataFrame, exceptions: DataFrame | None = None) -> DataFrame:
    """Return the attempts that have to do with a trouble; of their columns :data:`KIN`.

    All attempts of every task id of which one did not end alive or was rolled back; all that bear a
    fingerprint which was in a death; and all with more than ``LARGE`` bytes.

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
        .where(F.col("_troubled") | F.col("_died") | (F.col("payload_bytes") > LARGE))
        .select(*KIN)
    )
