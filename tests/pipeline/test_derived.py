"""The tables of a lake: kept up to date by what is new, and the same as if they were made anew (NEW-7)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from celery_poison.pipeline import sink, tables
from celery_poison.pipeline.backtest import past
from celery_poison.pipeline.blame import blame
from celery_poison.pipeline.derived import STORED, Derived
from celery_poison.pipeline.forecast import MEASURES, forecast
from celery_poison.pipeline.lake import Lake, Position
from celery_poison.pipeline.schema import JOURNAL, LAKE
from celery_poison.pipeline.seek import LOOK_BACK_MS
from celery_poison.pipeline.window import Window
from examples.histories import World, write_lake
from tests.pipeline import tallied

#: Stored tables that come out alike however often they are brought up to date.
EXACT = ("exceptions", "incidents", "runs_daily")


def _rows(frame: Any) -> list[str]:
    rows = frame.select(sorted(frame.columns)).collect()
    return sorted(json.dumps(row.asDict(), default=str) for row in rows)


def _add(lake: Lake, rows: pa.Table) -> None:
    lake.journal.create(LAKE)
    rows = rows.set_column(rows.column_names.index("app"), "app", pa.repeat(lake.app, len(rows)))
    files = sink.write(iter(rows.combine_chunks().to_batches()), lake.journal.uri, lake.journal.partitions)
    last = rows["at"][-1].cast(pa.int64()).as_py() // 1000
    lake.journal.commit(list(files), lake.app, Position(last, rows["seq"][-1].as_py()))


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """A small generated history, by time; two of its messages end alive once more soon after."""
    place = tmp_path_factory.mktemp("generated") / "lake"
    write_lake(World(attempts=3_000, days=8, deploy_every_days=1), place)
    rows = Lake(None, str(place)).journal.arrow().cast(sink.arrow_schema(LAKE))
    rows = rows.sort_by([("at", "ascending"), ("seq", "ascending")])
    begin = len(rows) // 3 * 2
    at = rows["at"][begin].as_py() + timedelta(seconds=1)
    once = [row for row in rows.slice(begin - 100, 100).to_pylist() if row["healthy"]]
    again = [
        {
            **row,
            "at": at,
            "date": at.date(),
            "entry": f"{at.timestamp() * 1000:.0f}-{n}",
            "seq": n,
            "token": token,
        }
        for n, (row, token) in enumerate(((once[0], once[0]["token"]), (once[1], "another start")))
    ]
    return pa.concat_tables([rows[:begin], pa.Table.from_pylist(again, rows.schema), rows[begin:]])


@pytest.mark.matrix
def test_tables_that_were_kept_up_to_date_are_what_the_whole_journal_gives(
    spark: Any, entries: pa.Table, tmp_path: Path
) -> None:
    lake, middle = Lake(spark, str(tmp_path), "x"), (len(entries) - 2) // 3 * 2
    # No more than is looked back at: of older runs `fingerprints` say nothing.
    first = entries["at"][middle].as_py() - timedelta(milliseconds=LOOK_BACK_MS)
    older = pc.sum(pc.less(entries["at"], first)).as_py()
    # In the middle of a day: what died before is tried after it, and a day is counted twice.
    for rows in (entries[older:middle], entries[middle:]):
        _add(lake, rows)
        Derived(spark, lake).make()
    derived = Derived(spark, lake)
    assert (derived.as_of.version, derived.as_of.gaps, derived.left_out) == (2, (), [])
    assert lake.table("runs_daily").version == 2, "two commits, and none where nothing is new"
    journal = lake.entries().persist()
    attempts = tables.attempts(journal).persist()
    expected = {
        "attempts": attempts,
        "messages": tables.messages(journal),
        "tallies": tables.tallies(attempts),
        "incidents": tables.incidents(tables.noted(journal), attempts),
        "fingerprints": tables.fingerprints(tables.fingerprints_daily(attempts)),
    }
    for name, frame in expected.items():
        rows = _rows(frame)
        assert rows and _rows(derived[name]) == rows, name
    attempts.unpersist()
    journal.unpersist()


def _told(rows: list[dict[str, Any]], kind: Any) -> dict[tuple[str, str, str], Any]:
    """Return the values of that kind, by element and column."""
    return {
        (row["dimension"], row["key"], name): value
        for row in rows
        for name, value in row.items()
        if isinstance(value, kind) and name not in ("first_seen", "told")  # of what is stored
    }


@pytest.mark.matrix
def test_spark_reads_the_queries_of_blame_and_of_the_back_test_as_duckdb_does(
    spark: Any, entries: pa.Table, tmp_path: Path
) -> None:
    lake = Lake(spark, str(tmp_path / "lake"), "x")
    _add(lake, entries)
    derived = Derived(spark, lake)
    derived.make()
    pq.write_table(entries, tmp_path / "journal.parquet")
    ask = tallied.history(tmp_path / "journal.parquet")
    for window in (Window(), Window.of("2026-01-10", None, None)):
        told = derived.judge(window)
        wanted = blame(ask, window)
        assert _told(told, str).keys() == _told(wanted, str).keys()
        assert _told(told, (int, float)) == pytest.approx(_told(wanted, (int, float)), rel=1e-6)
        assert len(told) > 100
    for measure in MEASURES:
        assert forecast(derived.ask, measure, 50) == forecast(ask, measure, 50) != []
    derived.register("seen_")
    assert spark.sql("select * from seen_blame").count() == len(blame(ask))
    (theirs, days, _), (ours, our_days, _) = past(ask), past(derived.ask)
    assert our_days == days
    assert sorted(ours) == sorted(theirs) != []


@pytest.mark.matrix
def test_a_lake_that_an_older_release_made_is_read_and_grows(
    spark: Any, entries: pa.Table, tmp_path: Path
) -> None:
    """Its journal lacks the columns of schema 3, and so do its tables."""
    lake, later, half = Lake(spark, str(tmp_path), "x"), ["enqueued_at", "run_memory_kb"], len(entries) // 2
    lake.journal.create(StructType([each for each in LAKE if each.name not in later]))
    old = StructType([each for each in JOURNAL if each.name not in later])
    company = lake.table("company", ("date",), JOURNAL)
    company.create(old)
    assert {*company.frame().columns} == {*JOURNAL.names}
    rows = entries.slice(0, half).drop_columns(later)
    rows = rows.set_column(rows.column_names.index("app"), "app", pa.repeat("x", half)).combine_chunks()
    files = sink.write(iter(rows.to_batches()), lake.journal.uri, lake.journal.partitions)
    last = rows["at"][-1].cast(pa.int64()).as_py() // 1000
    lake.journal.commit(list(files), "x", Position(last, rows["seq"][-1].as_py()))
    assert Derived(spark, lake)["measured"].where("wait_ms is not null").count() == 0
    _add(lake, entries.slice(half))
    again = Derived(spark, Lake(spark, str(tmp_path), "x"))
    assert again["measured"].where("wait_ms is not null").count() > 100
    assert again["attempts"].count() > half


@pytest.mark.matrix
def test_an_empty_lake_gives_empty_tables(spark: Any, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path), "x")
    derived = Derived(spark, lake)
    assert [derived[name].count() for name in ("attempts", "messages", "tallies")] == [0] * 3
    assert derived.as_of.upto == ""


@pytest.mark.matrix
def test_what_was_forgotten_makes_the_tables_anew_from_its_first_day_on(
    spark: Any, entries: pa.Table, tmp_path: Path
) -> None:
    from celery_poison.pipeline import maintain

    lake = Lake(spark, str(tmp_path), "x")
    _add(lake, entries)
    middle = entries["date"][len(entries) // 2].as_py()
    dead = next(row for row in entries.to_pylist() if row["event"] == "crashed" and row["date"] > middle)
    before = Derived(spark, lake)["tallies"].groupBy().sum("n").collect()[0][0]
    made = [lake.table(name) for name in STORED]
    files = {path for path, _ in made[-1].files([("date", "<", str(middle))])}
    maintain.forget(lake, [lake.journal, *made], [dead["id"]])
    after = Derived(spark, lake)
    runs = sum(row["id"] == dead["id"] and row["event"] in ENDS for row in entries.to_pylist())
    assert after["tallies"].groupBy().sum("n").collect()[0][0] == before - runs
    assert after["exceptions"].where(f"id = '{dead['id']}'").count() == 0
    assert files and files <= {path for path, _ in lake.table("sketches").files([])}, "days before stay"
    now = {name: _rows(after[name]) for name in STORED if name != "company"}
    after.make(rebuild=True)
    assert {name: _rows(after[name]) for name in now} == now


@pytest.mark.matrix
def test_fingerprints_count_what_there_is_of_their_kin_when_days_were_dropped(
    spark: Any, entries: pa.Table, tmp_path: Path
) -> None:
    from celery_poison.pipeline import maintain

    lake, half = Lake(spark, str(tmp_path), "x"), len(entries) // 2
    _add(lake, entries[:half])
    Derived(spark, lake).make()
    kept = datetime.now(UTC).date() - entries["date"][half].as_py() + timedelta(days=1)
    dropped = [maintain.keep_days(lake.table(name), kept.days) for name in STORED]
    assert sum(map(bool, dropped)) >= 4
    _add(lake, entries[half:])
    derived = Derived(spark, lake)
    assert _rows(derived["fingerprints"]) == _rows(
        tables.fingerprints(tables.fingerprints_daily(derived["kin"]))
    )


@pytest.mark.matrix
def test_tables_are_made_anew_when_that_is_asked_for_or_when_the_rules_have_changed(
    spark: Any, entries: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, middle = Lake(spark, str(tmp_path), "x"), entries["date"][len(entries) // 2].as_py()
    _add(lake, entries)
    first = Derived(spark, lake)
    told = {name: _rows(first[name]) for name in STORED}

    def written() -> dict[str, set[str]]:
        lake.journal.refresh()
        return {name: {path for path, _ in lake.table(name).files([])} for name in STORED}

    before = written()
    Derived(spark, lake).make()
    assert written() == before, "nothing is new"
    again = Derived(spark, lake)
    again.make(rebuild=True, since=middle)
    assert {name: _rows(again[name]) for name in STORED} == told
    days = {
        name: {path.partition("/")[0] for path in files - before[name]} for name, files in written().items()
    }
    assert all(days.values())
    assert min(days["runs_daily"]) == f"date={middle}"
    older = {path for path in before["runs_daily"] if path < f"date={middle}"}
    assert older and older <= written()["runs_daily"]
    before = written()
    monkeypatch.setattr("celery_poison.pipeline.derived.LOGIC", 7)
    changed = Derived(spark, lake)
    assert {name: _rows(changed[name]) for name in STORED} == told
    assert not any(before[name] & files for name, files in written().items())


@pytest.mark.matrix
def test_what_a_command_left_undone_that_was_killed_after_its_first_table_the_next_one_does(
    spark: Any, entries: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Derived) -> None:
        raise KeyboardInterrupt

    lake, many = Lake(spark, str(tmp_path), "x"), len(entries) // 4
    for number in range(4):
        _add(lake, entries.slice(number * many, many))
        with monkeypatch.context() as patch:
            if number % 2 == 0:  # there is no other table yet, and one that is three days behind
                patch.setattr(Derived, "_make_of_troubles", killed)
                with pytest.raises(KeyboardInterrupt):
                    Derived(spark, lake).make()
            else:
                Derived(spark, lake).make()
    derived = Derived(spark, lake)
    grown, company = {name: _rows(derived[name]) for name in EXACT}, _rows(derived["company"].select("entry"))
    derived.make(rebuild=True)
    assert {name: _rows(derived[name]) for name in EXACT} == grown
    assert len({*company}) == len(company) > 0, "what was told before the kill is not told again"
    assert {*company} <= {*_rows(derived["company"].select("entry"))}


ENDS = ("finished", "crashed", "interrupted", "rolled_back")


@pytest.mark.matrix
def test_a_message_that_ended_alive_twice_and_a_start_that_is_told_twice_are_one_row_within_two_days(
    spark: Any, tmp_path: Path
) -> None:
    from tests.pipeline.entries import journal_of, ran

    day = 24 * 3600
    told = journal_of(
        spark,
        *(ran("a", "a1", 1), ran("a", "a2", 2), ran("b", "b1", 3), ran("b", "b1", 4), ran("c", "c1", 5)),
        *(ran("d", "d1", 6), ran("d", "d1", 3 * day), ran("e", "e1", 7), ran("e", "e2", 3 * day + 1)),
    )
    rows = pa.table(told.toArrow()).cast(sink.arrow_schema(JOURNAL))
    rows = rows.append_column("rest", pa.nulls(len(rows), pa.string()))
    lake = Lake(spark, str(tmp_path), "x")
    _add(lake, rows.append_column("app", pa.repeat("x", len(rows))))
    derived = Derived(spark, lake)
    messages = sorted((row.mid, row.starts) for row in derived["messages"].collect())
    assert messages == [("a", 2), ("b", 1), ("c", 1), ("d", 1), ("e", 2)]
    seconds = sorted((row.token, row.at) for row in derived["attempts"].selectExpr(*AT).collect())
    known = [("a1", 1), ("a2", 2), ("b1", 4), ("c1", 5)]
    assert seconds == [*known, ("d1", 6), ("d1", 3 * day), ("e1", 7), ("e2", 3 * day + 1)]
    assert derived["tallies"].groupBy().sum("n").collect()[0][0] == len(seconds)


#: Seconds since the journal began.
AT = ("token", "unix_seconds(ended_at) - min(unix_seconds(ended_at)) over () + 1 as at")


def test_NEW_22_a_fingerprint_that_ended_alive_long_ago_is_not_guilty(
    spark: Any, entries: pa.Table, tmp_path: Path
) -> None:
    """Its healthy runs are older than what an update looks back at; what was counted of those days stays."""
    lake, fingerprint = Lake(spark, str(tmp_path), "x"), "feedfeedfeedfeed"
    is_early = pc.less(entries["date"], entries["at"][0].as_py().date() + timedelta(2))
    others = entries.filter(pc.and_not(pc.invert(entries["healthy"]), is_early))
    column = entries.column_names.index("fingerprint")
    early = entries.filter(pc.and_(entries["healthy"], is_early)).slice(0, 200)
    early = early.set_column(column, "fingerprint", pa.repeat(fingerprint, len(early)))
    _add(lake, pa.concat_tables([early, others]))
    Derived(spark, lake).make()
    row = dict.fromkeys(entries.column_names)
    at = entries["at"][-1].as_py()
    before = {path for path, _ in lake.table("fingerprints_daily").files([])}
    told = [
        {**row, "at": at, "date": at.date(), "entry": f"{at.timestamp() * 1000:.0f}-{n}", "seq": n, "v": 2}
        | {"event": "crashed", "outcome": "exact", "cause": "signal:11", "id": "p", "mid": "p"}
        | {"token": f"p{n}", "task": "t.poison", "worker": "main@app-01/aaaa", "healthy": False}
        | {"fingerprint": fingerprint, "crashes": n + 1, "runtime_ms": 10}
        for n in (0, 1)
    ]
    _add(lake, pa.Table.from_pylist(told, entries.schema))
    (found,) = [r for r in Derived(spark, lake)["fingerprints"].collect() if r["fingerprint"] == fingerprint]
    assert (found["guilty_messages"], found["alive"]) == (1, 200)
    older = {path for path in before if path < f"date={at.date() - timedelta(3)}"}
    assert older and older <= {path for path, _ in lake.table("fingerprints_daily").files([])}
