"""Runs and attempts that have to do with a trouble: a few in a hundred, of which most questions are asked."""

from __future__ import annotations

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


def company(runs: DataFrame, rest: DataFrame) -> DataFrame:
    """Return the runs that ended alive and that some trouble concerns.

    Those of a task id or a message that was ever in trouble; that bear a fingerprint which was in a death;
    that ran beside a process that died; whose message ended alive more than once; and those with more than
    :data:`LARGE` bytes.

    Args:
        runs, rest: entries of runs that ended alive, and all others.
    """
    died = rest.where("event = 'crashed'")
    twice = runs.where("mid is not null").groupBy(F.xxhash64("mid").alias("hash")).count().where("count > 1")
    near = beside(lone_deaths(died), runs, named="entry").select(F.col("run").alias("entry"))
    marked = runs.withColumn("hash", F.xxhash64("mid"))
    for names, key in ((rest, "id"), (rest, "mid"), (died, "fingerprint"), (twice, "hash"), (near, "entry")):
        keys = names.where(F.col(key).isNotNull()).select(key).distinct()
        marked = marked.join(keys.withColumn(f"_{key}", F.lit(True)), key, "left")
    marks = [F.col(f"_{key}").isNotNull() for key in ("id", "mid", "fingerprint", "hash", "entry")]
    concerned = F.col("payload_bytes") > LARGE
    for mark in marks:
        concerned = mark | F.coalesce(concerned, F.lit(False))
    return marked.where(concerned).select(*runs.columns)


def kin(attempts: DataFrame) -> DataFrame:
    """Return the attempts that have to do with a trouble; of their columns :data:`KIN`.

    All attempts of every task id of which one did not end alive or was rolled back; all that bear a
    fingerprint which was in a death; and all with more than ``LARGE`` bytes.

    Args:
        attempts: all, or those that ``company`` picked and the exceptions.
    """
    alive = ended_alive(F.col("end"), F.col("outcome")) & (F.col("end") != "rolled_back")
    troubled = attempts.where(~alive & F.col("id").isNotNull()).select("id").distinct()
    died = attempts.where("end = 'crashed' and fingerprint is not null").select("fingerprint").distinct()
    yes = F.lit(True)
    return (
        attempts.select(*KIN)
        .join(troubled.withColumn("_troubled", yes), "id", "left")
        .join(died.withColumn("_died", yes), "fingerprint", "left")
        .where(F.col("_troubled") | F.col("_died") | (F.col("payload_bytes") > LARGE))
        .select(*KIN)
    )
