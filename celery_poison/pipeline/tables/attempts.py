"""One row for each start of a message that has ended."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

ENDS = ("finished", "crashed", "interrupted", "rolled_back")
#: What is looked for beside a death at most: a longer run is taken for one of a week.
LONGEST_MS = 7 * 24 * 3600 * 1000
#: A longer run, over a thousand years, is taken for one of so long: beyond are no timestamps and no sums.
FARTHEST_MS = 2**45
_BUCKET_MS = 60_000
_KNOWN = "token is not null and at is not null"


def noted(journal: DataFrame) -> DataFrame:
    """Return every entry that is not of a run that ended alive: a few in a hundred."""
    return journal.where(~F.col("healthy"))


def attempts(journal: DataFrame) -> DataFrame:
    """Return one row per start that has ended (``token``), with its end, its cost and its company.

    A start of which the journal tells two ends (its worker was taken for dead and came back) has one row: the
    end alive if there is one, and of several that which was told last. An entry without a
    token or a time is left out.

    Args:
        journal: as ``celery_poison.pipeline.schema.JOURNAL``, every entry once.
    """
    runs = journal.where("healthy")
    return united(runs, repeated(runs), troubled(ends(noted(journal), runs), noted(journal), runs))


def united(runs: DataFrame, again: DataFrame, exceptions: DataFrame) -> DataFrame:
    """Return all attempts: the runs that ended alive, as they stand in the journal, and the exceptions.

    Args:
        again: what :func:`repeated` found.
        exceptions: what :func:`troubled` made.
    """
    return plain(runs.join(again.select("entry"), "entry", "left_anti")).unionByName(exceptions)


def plain(runs: DataFrame) -> DataFrame:
    """Return runs that ended alive as attempts: each needs nothing but its own entry."""
    return _as_attempts(
        runs.where(_KNOWN).withColumns(
            {"proof": F.lit(None).cast("string"), "neighbours": F.lit(None).cast("array<string>")}
        )
    )


def ends(rest: DataFrame, runs: DataFrame) -> DataFrame:
    """Return the entries that tell the end of a start which did not simply end alive, one for each.

    Args:
        rest: what :func:`noted` found.
        runs: the runs that ended alive; those that :func:`company` picked are enough.
    """
    newest = Window.partitionBy("token").orderBy(F.desc("at"), F.desc("seq"))
    told = rest.where(F.col("event").isin(*ENDS)).where(_KNOWN)
    other = told.withColumn("_n", F.row_number().over(newest)).where("_n = 1").drop("_n")
    return other.join(runs.where(_KNOWN).select("token"), "token", "left_anti")


def troubled(other: DataFrame, rest: DataFrame, runs: DataFrame) -> DataFrame:
    """Return the attempts that did not simply end alive: died, cut short, put back, lost.

    Args:
        other: what :func:`ends` found; better kept (``persist``), since it is asked for several times.
        rest, runs: as of :func:`ends`.
    """
    return _as_attempts(_with_neighbours(_with_proof(other, rest), runs.where(_KNOWN)))


def measured(runs: DataFrame, exceptions: DataFrame) -> DataFrame:
    """Return of each run that ended alive or died what it needed; of a death, memory since it began.

    ``wait_ms`` is known of a message's first start alone: from when it was published, a week at most.
    """
    wait = F.unix_millis("at") - ran_ms() - F.col("enqueued_at")
    wait = F.when(
        (F.col("deliveries") == 1) & F.col("enqueued_at").isNotNull(),  # the greatest of null and 0 is 0
        F.least(F.greatest(wait, F.lit(0)), F.lit(LONGEST_MS)),
    )
    alive = runs.where(_KNOWN).withColumns({"died": F.lit(False), "wait_ms": wait})
    died = exceptions.where("end = 'crashed'").withColumns(
        {"died": F.lit(True), "run_memory_kb": F.col("memory_kb"), "wait_ms": F.lit(None).cast("long")}
    )
    columns = ("task", "release", "date", "payload_bytes", ran_ms().alias("runtime_ms"), "cause")
    told = (*columns, "died", "run_memory_kb", "wait_ms")
    return alive.select(*told).unionByName(died.select(*told))


def repeated(runs: DataFrame) -> DataFrame:
    """Return ``entry, date, later`` of runs whose end is told once more, later: only the last counts."""
    newest = Window.partitionBy("token").orderBy(F.desc("at"), F.desc("seq"))
    told = runs.where(_KNOWN).select("entry", "token", "at", "seq", "date")
    ranked = told.withColumns({"n": F.row_number().over(newest), "later": F.max("at").over(newest)})
    return ranked.where("n > 1").select("entry", "date", "later")


def _as_attempts(ends: DataFrame) -> DataFrame:
    return ends.select(
        *("token", "id", "mid", "task", "queue", "worker"),
        host_of(F.col("worker")).alias("host"),
        "pid",
        started().alias("started_at"),
        F.col("at").alias("ended_at"),
        "seq",
        "date",
        F.col("event").alias("end"),
        F.when(~_is_death(), F.col("outcome")).alias("outcome"),
        "cause",
        F.when(_is_death(), F.col("outcome")).alias("blame"),
        "proof",
        F.when(_is_death(), F.coalesce(common_death(), F.col("token"))).alias("death"),
        "incident",
        "neighbours",
        *("deliveries", "crashes", "strikes", "failures", "runtime_ms", "memory_kb", "payload_bytes"),
        *("fingerprint", "shape", "release", "evidence"),
    )


def host_of(worker: Column) -> Column:
    """Return the host of ``name@host/boot``; the whole node name where it has no ``@``."""
    boot = F.substring_index(worker, "/", -1)
    # No regular expression: this is done for every attempt.
    node = F.when(F.contains(worker, F.lit("/")), F.left(worker, F.length(worker) - F.length(boot) - 1))
    return F.substring_index(node.otherwise(worker), "@", -1)


def ended_alive(end: Column, outcome: Column) -> Column:
    """Whether a start came to its own end: it returned, raised or put itself back, and nothing died."""
    finished = (end == "finished") & F.coalesce(outcome != "lost", F.lit(True))
    return finished | (end == "rolled_back")


def count(condition: Column) -> Column:
    return F.count(F.when(condition, True))


def _is_death() -> Column:
    return F.col("event") == "crashed"


def common_death() -> Column:
    """Return the death in which others may have died too: of a worker, or of the cell of a group on trial."""
    cell = F.concat("worker", F.lit("/"), F.col("pid").cast("string"))
    return F.coalesce("incident", F.when(_is_death() & (F.col("outcome") == "shared"), cell))


def ran_ms() -> Column:
    """Return how long a run took; 0 where that is not known, and of what is no run."""
    return F.least(F.greatest(F.col("runtime_ms"), F.lit(0)), F.lit(FARTHEST_MS))


def started() -> Column:
    """Return when the run began that an entry ends; of what is no end, when it happened."""
    return F.timestamp_millis(F.unix_millis("at") - ran_ms())


def _with_proof(other: DataFrame, rest: DataFrame) -> DataFrame:
    """Add what is known of a suspect: ``proven`` by dying alone, ``cleared`` by its trial, or ``open``."""
    died = F.col("event") == "crashed"
    alone = other.where(died & (F.col("outcome") == "exact")).withColumn("says", F.lit("proven"))
    cleared = rest.where((F.col("event") == "cleared") & F.col("id").isNotNull())
    columns = ["id", "at", "seq", "says"]
    decided = alone.select(columns).union(cleared.withColumn("says", F.lit("cleared")).select(columns))
    shared = other.where(died & (F.col("outcome") == "shared")).select("token", "id", "at", "seq").alias("s")
    later = F.struct("d.at", "d.seq") > F.struct("s.at", "s.seq")
    tried = (
        shared.join(decided.alias("d"), (F.col("s.id") == F.col("d.id")) & later)
        .groupBy("s.token")
        .agg(F.min_by("d.says", F.struct("d.at", "d.seq")).alias("says"))
    )
    says = F.when(F.col("outcome") == "exact", "proven").otherwise(F.coalesce("says", F.lit("open")))
    return other.join(tried, "token", "left").withColumn("proof", F.when(died, says)).drop("says")


def _with_neighbours(other: DataFrame, alive: DataFrame) -> DataFrame:
    """Add the tokens of what ran beside each death, sorted; null for what did not die.

    With a whole worker: what ended by the same death. With its own process: what its worker ran at that
    moment; only what shares a minute is compared, or each death would meet each run of its worker.
    """
    columns = ["token", "worker", "at", "runtime_ms"]
    runs = alive.select(*columns).unionAll(other.select(*columns))
    beside = _in_its_death(other).union(_beside(other.where(is_lone_death()), runs))
    found = beside.groupBy("token").agg(F.sort_array(F.collect_set("neighbour")).alias("found"))
    some = F.coalesce("found", F.array().cast("array<string>"))
    return (
        other.join(found, "token", "left").withColumn("neighbours", F.when(_is_death(), some)).drop("found")
    )


def _in_its_death(other: DataFrame) -> DataFrame:
    members = other.withColumn("death", common_death()).where("death is not null")
    members = members.select("death", "token", "event")
    left, right = members.where(_is_death()).alias("l"), members.alias("r")
    same = (F.col("l.death") == F.col("r.death")) & (F.col("l.token") != F.col("r.token"))
    return left.join(right, same).select(F.col("l.token"), F.col("r.token").alias("neighbour"))


def is_lone_death() -> Column:
    """Whether a process died alone."""
    return _is_death() & common_death().isNull()


def _beside(deaths: DataFrame, runs: DataFrame) -> DataFrame:
    until = F.unix_millis("at")
    since = until - F.least(ran_ms(), F.lit(LONGEST_MS))
    ran = runs.select(F.col("token").alias("run"), "worker", until.alias("until"), since.alias("since"))
    minutes = F.sequence(F.floor(F.col("since") / _BUCKET_MS), F.floor(F.col("until") / _BUCKET_MS))
    ran = ran.withColumn("minute", F.explode(minutes)).alias("r")
    died = deaths.select(
        "token", "worker", until.alias("died"), F.floor(until / _BUCKET_MS).alias("minute")
    ).alias("d")
    together = (
        (F.col("d.worker") == F.col("r.worker"))
        & (F.col("d.minute") == F.col("r.minute"))
        & (F.col("d.token") != F.col("r.run"))
        & (F.col("r.since") <= F.col("d.died"))
        & (F.col("d.died") < F.col("r.until"))
    )
    return ran.join(died, together).select("d.token", F.col("r.run").alias("neighbour"))
