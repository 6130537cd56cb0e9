"""What a few entries become in the tables (NEW-7)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pipeline.entries import W2, cleared, died, journal_of, ran

#: A worker for each story, so that one journal can tell them all: making a table costs more than reading it.
W3, W4, W5 = "main@app-03/cccc", "no slash", "x/y@app-05/boot"
TRIED = (
    died("a", "a1", 10, "shared", incident="i1"),
    died("b", "b1", 10.001, "shared", incident="i1"),
    died("c", "c1", 10.002, "shared", incident="i1"),
    ran("b", "b2", 20),
    cleared("b", "b2", 20.001),
    died("a", "a2", 30),
    # Long after its trial: a new death, and no word about the old one.
    died("b", "b3", 90, "shared", incident="i2"),
)
BESIDE = (
    died("x", "x", 100, worker=W3),
    ran("before", "before", 99.9, worker=W3),
    ran("during", "during", 100.5, ms=900, worker=W3),
    ran("long", "long", 400, ms=390_000, worker=W3),
    ran("after", "after", 102, ms=1_000, worker=W3),
    ran("elsewhere", "elsewhere", 100.5, ms=900, worker=W2),
    died("too", "too", 100.3, ms=5_000, worker=W3),
)
#: On trial together: they died with one cell, and nobody knows by whom.
GROUP = (
    died("ga", "ga1", 500, "shared", worker=W3, pid=77),
    died("gb", "gb1", 500.002, "shared", worker=W3, pid=77),
    died("gc", "gc1", 500.5, "shared", worker=W3, pid=78),
)
TWO_ENDS = (
    died("d", "d1", 10, "shared", incident="i3", worker=W2),
    ran("d", "d1", 12, worker=W2),
    {**ran("e", "e1", 11, worker=W2), "outcome": "lost"},
    died("e", "e1", 13, worker=W2),
    {**died("nobody", "", 14), "token": None},
)
HOSTILE = (
    ran("h", "'; drop--", 10, ms=9_000_000_000_000, worker=W4),
    ran("i", "\N{SNAKE}", 10, ms=-5, worker=W5),
    died("j", "j", 9, worker=W4, ms=None),
)
INCIDENT = (
    {
        "event": "worker_lost",
        "s": 200,
        "worker": W2,
        "cause": "worker_lost",
        "incident": "i9",
        "note": "gone",
    },
    died("g", "g1", 200.01, "shared", incident="i9", fingerprint="fg", worker=W2),
    died("q", "q1", 200.02, "shared", incident="i9", task="t.calm", worker=W2),
    {**ran("k", "k1", 200.03), "event": "interrupted", "outcome": None, "incident": "i9"},
    {
        "event": "failover_finished",
        "s": 200.5,
        "worker": W2,
        "incident": "i9",
        "note": "flagged 2, put back 8",
    },
    died("g", "g2", 220, fingerprint="fg", worker=W2),
    {**cleared("q", "q2", 221), "state": "DLVD"},
    {
        "event": "quarantined",
        "id": "g",
        "mid": "g",
        "s": 220.1,
        "state": "NDLV",
        "cause": "signal:9",
        "note": "why",
    },
    died("lonely", "l1", 230, "shared", incident="trimmed", worker=W2),
)


@pytest.fixture(scope="module")
def journal(spark: Any) -> Any:
    return journal_of(spark, *TRIED, *BESIDE, *GROUP, *TWO_ENDS, *HOSTILE, *INCIDENT).persist()


@pytest.fixture(scope="module")
def made(journal: Any) -> Any:
    from celery_poison.pipeline.tables import attempts

    return attempts(journal).persist()


@pytest.fixture(scope="module")
def rows(made: Any) -> dict[str, Any]:
    return {row.token: row for row in made.collect()}


def test_the_ports_of_a_local_spark_want_a_secret(spark: Any) -> None:
    assert spark.sparkContext.getConf().get("spark.authenticate") == "true"


def test_a_shared_death_is_decided_by_what_comes_next_of_each_suspect(rows: dict[str, Any]) -> None:
    proofs = {"a1": "proven", "a2": "proven", "b1": "cleared", "b2": None, "b3": "open", "c1": "open"}
    assert {token: rows[token].proof for token in proofs} == proofs
    assert rows["a1"].neighbours == ["b1", "c1"]
    assert rows["b3"].neighbours == []
    assert (rows["a1"].death, rows["a2"].death, rows["b2"].death) == ("i1", "a2", None)


def test_the_neighbours_of_a_process_that_died_are_those_its_worker_ran_at_that_moment(
    rows: dict[str, Any],
) -> None:
    assert rows["x"].neighbours == ["during", "long", "too"]
    assert rows["too"].neighbours == ["during", "long"]


@pytest.mark.matrix
def test_those_who_were_on_trial_together_died_in_one_death(
    journal: Any, made: Any, rows: dict[str, Any]
) -> None:
    from celery_poison.pipeline.tables import incidents

    assert rows["ga1"].death == rows["gb1"].death != rows["gc1"].death
    assert (rows["ga1"].neighbours, rows["gc1"].neighbours) == (["gb1"], [])
    told = {row.death: row for row in incidents(journal, made).collect()}
    assert (told[rows["ga1"].death].suspects, told[rows["ga1"].death].kind) == (2, "process")


def test_a_start_with_two_ends_is_one_row_and_ended_alive(rows: dict[str, Any]) -> None:
    assert (rows["d1"].end, rows["e1"].end) == ("finished", "crashed")
    assert (rows["d1"].host, rows["d1"].proof, rows["d1"].outcome) == ("app-02", None, "success")
    assert (rows["d1"].ended_at - rows["d1"].started_at).total_seconds() == 1
    assert "" not in rows and None not in rows


def test_hostile_numbers_and_strings_do_no_harm(rows: dict[str, Any]) -> None:
    assert (rows["'; drop--"].host, rows["\N{SNAKE}"].host) == ("no slash", "app-05")
    assert rows["\N{SNAKE}"].started_at == rows["\N{SNAKE}"].ended_at
    assert rows["j"].neighbours == ["'; drop--"]


def test_an_incident_tells_its_suspects_and_its_recovery(journal: Any, made: Any) -> None:
    from celery_poison.pipeline.tables import incidents

    told = {row.death: row for row in incidents(journal, made).collect()}
    whole = told["i9"]
    assert (whole.kind, whole.host, whole.recovery_ms) == ("worker", "app-02", 500)
    assert (whole.flagged, whole.put_back) == (2, 8)
    assert (whole.suspects, whole.interrupted, whole.proven, whole.cleared, whole.open) == (2, 1, 1, 1, 0)
    assert (whole.tasks, whole.culprit_tasks) == (["t.calm", "t.poison"], ["t.poison"])
    assert whole.culprit_fingerprints == ["fg"]
    assert (told["g2"].kind, told["g2"].recovery_ms, told["g2"].proven) == ("process", None, 1)
    assert (told["trimmed"].suspects, told["trimmed"].cause) == (1, None)


def test_a_message_has_its_whole_life_in_one_row(journal: Any) -> None:
    from celery_poison.pipeline.tables import messages

    told = {row.mid: row for row in messages(journal).collect()}
    assert (told["g"].starts, told["g"].deaths, told["g"].lost_ms) == (2, 2, 2000)
    assert (told["g"].state, told["g"].cause, told["g"].reason) == ("NDLV", "signal:9", "why")
    assert (told["long"].starts, told["long"].deaths, told["long"].runtime_ms) == (1, 0, 390_000)
    assert told["b"].state == "TBDL" and told["before"].state == "DLVD"


def test_fingerprints_and_days_count_what_attempts_tell(made: Any) -> None:
    from celery_poison.pipeline.tables import daily, fingerprints, fingerprints_daily, task_daily

    (only,) = fingerprints(fingerprints_daily(made)).collect()
    assert (only.fingerprint, only.messages, only.deaths, only.proven, only.alive) == ("fg", 1, 2, 2, 0)
    days = {row.task: row for row in task_daily(daily(made)).collect()}
    assert days["t.poison"].deaths == sum(
        row.end == "crashed" and row.task == "t.poison" for row in made.collect()
    )
