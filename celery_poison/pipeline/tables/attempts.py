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


def noted(journal: DataFrame) -> DataFrame:
    """Return every entry that is not about a run that ended alive: a few in a thousand.

    Keep it (``persist``) and give it to the functions that ask for it: finding it is a pass over the journal.
    """
    return journal.where(~F.coalesce(_is_alive(), F.lit(False)))


def attempts(journal: DataFrame, rest: DataFrame | None = None) -> DataFrame:
    """Return one row per start that has ended (``token``), with its end, its cost and its company.

    A start of which the journal tells two ends (its worker was taken for dead and came back) has one row: the
    end alive if there is one, and of several that which was told last. An entry without a
    token or a time is left out.

    Args:
        journal: as ``celery_poison.pipeline.schema.JOURNAL``, every entry once.
        rest: what :func:`noted` found in it, where that is kept already.
    """
    known = F.col("token").isNotNull() & F.col("at").isNotNull()
    alive = journal.where(_is_alive() & known)
    rest = noted(journal).persist() if rest is None else rest
    other = _last_told(rest.where(F.col("event").isin(*ENDS) & known))
    # Troubles are few, healthy runs are many: whatever needs a join is done on the troubles.
    revived = alive.join(F.broadcast(other.select("token")), "token", "left_semi").select("token")
    other = other.join(F.broadcast(revived), "token", "left_anti").persist()
    other = _with_proof(other, rest)
    other = _with_neighbours(other, alive)
    nobody = F.lit(None).cast("array<string>")
    told = _once(alive).withColumns({"proof": F.lit(None).cast("string"), "neighbours": nobody})
    return (told.select(*other.columns).unionByName(other)).select(
        "token",
        "id",
        "mid",
        "task",
        "queue",
        "worker",
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
        F.when(_is_death(), F.coalesce(_common_death(), F.col("token"))).alias("death"),
        "incident",
        "neighbours",
        "deliveries",
        "crashes",
        "strikes",
        "failures",
        "runtime_ms",
        "memory_kb",
        "payload_bytes",
        "fingerprint",
        "shape",
        "release",
        "evidence",
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


def _is_alive() -> Column:
    return (F.col("event") == "finished") & F.coalesce(F.col("outcome") != "lost", F.lit(True))


def _is_death() -> Column:
    return F.col("event") == "crashed"


def _common_death() -> Column:
    """The death in which others may have died too: that of a worker, or of the cell of a group on trial."""
    cell = F.concat("worker", F.lit("/"), F.col("pid").cast("string"))
    return F.coalesce("incident", F.when(_is_death() & (F.col("outcome") == "shared"), cell))


def ran_ms() -> Column:
    """Return how long a run took; 0 where that is not known, and of what is no run."""
    return F.least(F.greatest(F.col("runtime_ms"), F.lit(0)), F.lit(FARTHEST_MS))


def started() -> Column:
    """Return when the run began that an entry ends; of what is no end, when it happened."""
    return F.timestamp_millis(F.unix_millis("at") - ran_ms())


def _once(alive: DataFrame) -> DataFrame:
    """Hardly any token comes twice, and only of these the last is looked for."""
    several = F.broadcast(alive.groupBy("token").count().where("count > 1").select("token"))
    last = _last_told(alive.join(several, "token", "left_semi"))
    return alive.join(several, "token", "left_anti").unionByName(last)


def _last_told(ends: DataFrame) -> DataFrame:
    newest = Window.partitionBy("token").orderBy(F.desc("at"), F.desc("seq"))
    return ends.withColumn("_n", F.row_number().over(newest)).where("_n = 1").drop("_n")


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

    With a whole worker, or on trial with others: what ended by the same death. With its own process: what its
    worker ran at that moment. Only what shares a minute is compared, or each death would meet each run of its
    worker.
    """
    beside = _in_its_death(other).union(_at_that_moment(other, alive))
    found = beside.groupBy("token").agg(F.sort_array(F.collect_set("neighbour")).alias("found"))
    some = F.coalesce("found", F.array().cast("array<string>"))
    return (
        other.join(found, "token", "left").withColumn("neighbours", F.when(_is_death(), some)).drop("found")
    )


def _in_its_death(other: DataFrame) -> DataFrame:
    members = other.withColumn("death", _common_death()).where("death is not null")
    members = members.select("death", "token", "event")
    left, right = members.where(_is_death()).alias("l"), members.alias("r")
    same = (F.col("l.death") == F.col("r.death")) & (F.col("l.token") != F.col("r.token"))
    return left.join(right, same).select(F.col("l.token"), F.col("r.token").alias("neighbour"))


def _at_that_moment(other: DataFrame, alive: DataFrame) -> DataFrame:
    until = F.unix_millis("at")
    ran = F.least(ran_ms(), F.lit(LONGEST_MS))
    columns = ["token", "worker", until.alias("until"), (until - ran).alias("since")]
    minutes = F.sequence(F.floor(F.col("since") / _BUCKET_MS), F.floor(F.col("until") / _BUCKET_MS))
    runs = alive.select(columns).unionAll(other.select(columns))
    runs = runs.select("token", "worker", "since", "until", F.explode(minutes).alias("minute")).alias("r")
    alone = other.where(_is_death() & _common_death().isNull())
    died = alone.select(
        "token", "worker", until.alias("died"), F.floor(until / _BUCKET_MS).alias("minute")
    ).alias("d")
    together = (
        (F.col("d.worker") == F.col("r.worker"))
        & (F.col("d.minute") == F.col("r.minute"))
        & (F.col("d.token") != F.col("r.token"))
        & (F.col("r.since") <= F.col("d.died"))
        & (F.col("d.died") < F.col("r.until"))
    )
    return runs.join(F.broadcast(died), together).select("d.token", F.col("r.token").alias("neighbour"))
