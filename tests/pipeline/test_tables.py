"""What a few entries become in the tables (NEW-7)."""

from __future__ import annotations

from typing import Any

from tests.pipeline.entries import W1, W2, cleared, died, journal_of, ran


def _by(frame: Any, key: str) -> dict[str, Any]:
    return {row[key]: row for row in frame.collect()}


def _attempts(spark: Any, *entries: dict[str, Any]) -> dict[str, Any]:
    from celery_poison.pipeline.tables import attempts

    return _by(attempts(journal_of(spark, *entries)), "token")


def test_a_shared_death_is_decided_by_what_comes_next_of_each_suspect(spark: Any) -> None:
    rows = _attempts(
        spark,
        died("a", "a1", 10, "shared", incident="i1"),
        died("b", "b1", 10.001, "shared", incident="i1"),
        died("c", "c1", 10.002, "shared", incident="i1"),
        ran("b", "b2", 20),
        cleared("b", "b2", 20.001),
        died("a", "a2", 30),
        # Long after its trial: a new death, and no word about the old one.
        died("b", "b3", 90, "shared", incident="i2"),
    )
    assert {token: row.proof for token, row in rows.items()} == {
        "a1": "proven",
        "a2": "proven",
        "b1": "cleared",
        "b2": None,
        "b3": "open",
        "c1": "open",
    }
    assert rows["a1"].neighbours == ["b1", "c1"]
    assert rows["b3"].neighbours == []
    assert (rows["a1"].death, rows["a2"].death, rows["b2"].death) == ("i1", "a2", None)


def test_the_neighbours_of_a_process_that_died_are_those_its_worker_ran_at_that_moment(spark: Any) -> None:
    rows = _attempts(
        spark,
        died("x", "x", 100),
        ran("before", "before", 99.9),
        ran("during", "during", 100.5, ms=900),
        ran("long", "long", 400, ms=390_000),
        ran("after", "after", 102, ms=1_000),
        ran("elsewhere", "elsewhere", 100.5, ms=900, worker=W2),
        died("too", "too", 100.3, ms=5_000),
    )
    assert rows["x"].neighbours == ["during", "long", "too"]
    assert rows["too"].neighbours == ["during", "long"]


def test_a_start_with_two_ends_is_one_row_and_ended_alive(spark: Any) -> None:
    rows = _attempts(
        spark,
        died("a", "a1", 10, "shared", incident="i1"),
        ran("a", "a1", 12),
        {**ran("b", "b1", 11), "outcome": "lost"},
        {**died("b", "b1", 13)},
        {**died("", "", 14), "token": None},
    )
    assert {token: row.end for token, row in rows.items()} == {"a1": "finished", "b1": "crashed"}
    assert (rows["a1"].host, rows["a1"].proof, rows["a1"].outcome) == ("app-01", None, "success")
    assert (rows["a1"].ended_at - rows["a1"].started_at).total_seconds() == 1


def test_hostile_numbers_and_strings_do_no_harm(spark: Any) -> None:
    rows = _attempts(
        spark,
        ran("a", "'; drop--", 10, ms=9_000_000_000_000, worker="no slash"),
        ran("b", "b", 11, ms=-5, worker="🐍/x/y@z/boot"),
        died("c", "c", 10, worker="no slash", ms=None),
    )
    assert rows["'; drop--"].host == "no slash"
    assert rows["b"].started_at == rows["b"].ended_at
    assert rows["c"].neighbours == [] or rows["c"].neighbours == ["'; drop--"]


def test_an_incident_tells_its_suspects_and_its_recovery(spark: Any) -> None:
    from celery_poison.pipeline.tables import attempts, incidents

    journal = journal_of(
        spark,
        {
            "event": "worker_lost",
            "s": 10,
            "worker": W1,
            "cause": "worker_lost",
            "incident": "i1",
            "note": "gone",
        },
        died("a", "a1", 10.01, "shared", incident="i1", fingerprint="fa"),
        died("b", "b1", 10.02, "shared", incident="i1", task="t.calm"),
        {**ran("k", "k1", 10.03), "event": "interrupted", "outcome": None, "incident": "i1"},
        {
            "event": "failover_finished",
            "s": 10.5,
            "worker": W1,
            "incident": "i1",
            "note": "flagged 2, put back 8",
        },
        died("a", "a2", 20, fingerprint="fa"),
        cleared("b", "b2", 21),
        died("lonely", "l1", 30, "shared", incident="trimmed"),
    )
    rows = _by(incidents(journal, attempts(journal)), "death")
    whole = rows["i1"]
    assert (whole.kind, whole.host, whole.recovery_ms, whole.flagged, whole.put_back) == (
        "worker",
        "app-01",
        500,
        2,
        8,
    )
    assert (whole.suspects, whole.interrupted, whole.proven, whole.cleared, whole.open) == (2, 1, 1, 1, 0)
    assert (whole.tasks, whole.culprit_tasks, whole.culprit_fingerprints) == (
        ["t.calm", "t.poison"],
        ["t.poison"],
        ["fa"],
    )
    assert (rows["a2"].kind, rows["a2"].recovery_ms, rows["a2"].proven) == ("process", None, 1)
    assert (rows["trimmed"].suspects, rows["trimmed"].cause) == (1, None)


def test_an_empty_journal_gives_empty_tables(spark: Any) -> None:
    from celery_poison.pipeline import blame
    from celery_poison.pipeline.tables import attempts, incidents

    empty = journal_of(spark)
    assert attempts(empty).collect() == []
    assert incidents(empty, attempts(empty)).collect() == []
    assert blame.score(blame.spectrum(attempts(empty))).collect() == []
