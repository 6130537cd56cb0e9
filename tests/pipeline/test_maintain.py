"""What keeps a lake small, quick and lawful (NEW-7). No Spark."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from celery_poison.cli.standalone import main
from celery_poison.pipeline import maintain, sink
from celery_poison.pipeline.lake import Gap, Lake, LakeError, LakeTaken, Position
from celery_poison.pipeline.schema import LAKE, VERSIONS

NOW = datetime.now(UTC).replace(microsecond=0)


def _rows(start: int, count: int, app: str = "shop") -> pa.RecordBatch:
    """Entries an hour apart, the newest of the present hour."""
    made = []
    for number in range(start, start + count):
        at = NOW - timedelta(hours=100 - number)
        row = {"entry": f"{number}-0", "at": at, "seq": 0, "date": at.date(), "v": 2, "event": "finished"}
        made.append({**row, "id": f"id-{number}", "healthy": number % 5 > 0, "app": app})
    return pa.RecordBatch.from_pylist(made, schema=sink.arrow_schema(LAKE))


def _add(lake: Lake, start: int, count: int) -> None:
    lake.journal.create(LAKE)
    files = sink.write(iter([_rows(start, count)]), lake.journal.uri, lake.journal.partitions)
    lake.journal.commit(list(files), lake.app, Position(start + count - 1, 0, start + count))


def _ids(lake: Lake) -> list[int]:
    lake.journal.refresh()
    return sorted(int(row["entry"][:-2]) for row in lake.journal.arrow(["entry"]).to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(None, str(tmp_path / "lake"), "shop")
    for start in range(0, 100, 10):
        _add(made, start, 10)
    return made


def test_the_log_alone_tells_whether_anything_is_of_an_unknown_version(lake: Lake) -> None:
    assert lake.left_out() == ()  # there is no Spark here that could look
    assert sink.within(lake.journal.delta, "v", VERSIONS)
    assert not sink.within(lake.journal.delta, "v", (1,))
    assert not sink.within(lake.journal.delta, "pid", VERSIONS)  # null everywhere
    assert not sink.within(lake.journal.delta, "task", VERSIONS)


def test_of_two_commits_from_one_snapshot_the_second_is_refused_and_other_apps_are_not(lake: Lake) -> None:
    first, second, mail = (Lake(None, lake.root, app) for app in ("shop", "shop", "mail"))
    assert [each.journal.version for each in (first, second, mail)] == [10, 10, 10]
    _add(first, 100, 1)
    _add(mail, 0, 3)
    with pytest.raises(LakeTaken, match="was first"):
        _add(second, 100, 1)
    assert len(_ids(lake)) == 104
    assert (lake.journal.position("shop"), str(lake.journal.position("mail"))) == (
        Position(100, 0, 101),
        "2-0",
    )


@pytest.mark.parametrize("sign", "[]{}*?\\^|%")
def test_a_path_that_spark_or_delta_cannot_read_is_refused_in_one_sentence(tmp_path: Path, sign: str) -> None:
    with pytest.raises(LakeError, match=f"cannot be a lake: its path has {re.escape(sign)}, which"):
        Lake(None, str(tmp_path / f"a{sign}b"))


def test_files_that_no_commit_names_do_not_count_and_vacuum_removes_them(lake: Lake) -> None:
    (orphan, *_) = sink.write(iter([_rows(100, 5)]), lake.journal.uri, lake.journal.partitions)
    assert _ids(lake) == [*range(100)]
    assert maintain.vacuum(lake.journal) == 0, "it may be of an ingest that is about to commit"
    assert Path(lake.journal.uri, orphan.path).exists()
    assert maintain.vacuum(lake.journal, keep_hours=0) >= 1
    assert not Path(lake.journal.uri, orphan.path).exists()
    assert _ids(lake) == [*range(100)]


_COMPACTING = """
import sys
import time
from celery_poison.pipeline import maintain
from celery_poison.pipeline.lake import Lake
print("begins", flush=True)
while True:
    maintain.compact(Lake(None, sys.argv[1], "shop").journal)
    maintain.vacuum(Lake(None, sys.argv[1], "shop").journal, keep_hours=1)
"""


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.matrix)])
def test_a_compaction_that_is_cut_off_loses_nothing(lake: Lake, kills: int) -> None:
    dice, start = random.Random(kills), 100
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, "-c", _COMPACTING, lake.root], stdout=subprocess.PIPE)
        assert process.stdout and process.stdout.readline() == b"begins\n"
        for _ in range(3):
            _add(Lake(None, lake.root, "shop"), start, 10)  # an ingest goes on beside it
            start += 10
        time.sleep(dice.uniform(0, 0.05))  # the moment is the experiment
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert _ids(lake) == [*range(start)]
    maintain.compact(lake.journal)
    assert _ids(lake) == [*range(start)]


@pytest.mark.parametrize("many", [2_000, pytest.param(60_000, marks=pytest.mark.matrix)])
def test_what_is_forgotten_is_gone_from_the_files_and_the_tables_are_to_be_made_anew(
    lake: Lake, many: int
) -> None:
    """In one condition the many ids end the process."""
    tables = [lake.journal]
    others = [f"id-{number}" for number in range(1_000, 1_000 + many)]
    assert maintain.forget(lake, tables, ["id-3", *others, "id-5", "x' OR 1=1 --"]) == 2
    assert _ids(lake) == [n for n in range(100) if n not in (3, 5)]
    assert lake.journal.position("shop") == Position(99, 0, 100)
    maintain.vacuum(lake.journal, keep_hours=0)
    files = Path(lake.journal.uri).glob("app=*/**/*.parquet")
    assert not {"id-3", "id-5"} & {row for path in files for row in pq.read_table(path)["id"].to_pylist()}


def test_older_days_are_dropped_and_a_restore_brings_them_back_while_their_files_stay(lake: Lake) -> None:
    before = lake.journal.version
    kept = [
        n for n in range(100) if (NOW - timedelta(hours=100 - n)).date() >= NOW.date() - timedelta(days=2)
    ]
    dropped = maintain.keep_days(lake.journal, 2)
    assert dropped == 100 - len(kept) > 0 and _ids(lake) == kept
    _add(lake, 100, 5)
    maintain.restore(lake, before)
    assert _ids(lake) == [*range(100)]
    assert lake.journal.position("shop") == Position(99, 0, 100, epoch=1), "ingest goes on from there"
    maintain.compact(lake.journal)
    maintain.vacuum(lake.journal, keep_hours=0)
    with pytest.raises(LakeError, match="version 3 of the journal cannot be restored"):
        maintain.restore(lake, 3)


def test_the_log_tells_the_ends_of_each_column_so_that_readers_leave_files_out(lake: Lake) -> None:
    actions = pa.table(lake.journal.delta.get_add_actions(flatten=True)).to_pylist()
    for each in actions:
        rows = pq.read_table(f"{lake.journal.uri}/{unquote(each['path'])}")
        times = rows["at"].to_pylist()
        assert each["min.at"] <= min(times) and max(times) <= each["max.at"]
        assert (each["min.v"], each["max.v"], each["null_count.task"]) == (2, 2, len(rows))
        assert each.get("min.event") is each.get("min.task") is None, "text would only make the log long"
    since = NOW - timedelta(hours=35)
    every, few = (len(lake.journal.files(filters)) for filters in ([], [("at", ">=", since)]))
    assert 0 < few < every == len(actions)
    kept = {path for path, _ in lake.journal.files([("at", ">=", since)])}
    assert {each["path"] for each in actions if each["max.at"] >= since} == kept


def test_maintenance_sums_up_the_log_and_positions_stay(lake: Lake) -> None:
    log = Path(lake.journal.uri, "_delta_log")
    _run("--lake", lake.root)
    old, month_ago = [*log.glob("*.json")], time.time() - 40 * 86_400
    for path in (*old, *log.glob("*.checkpoint.parquet")):
        os.utime(path, (month_ago, month_ago))
    _add(Lake(None, lake.root, "shop"), 100, 1)
    lake.journal.refresh()
    before = lake.journal.position("shop")
    _run("--lake", lake.root)
    assert [*log.glob("*.checkpoint.parquet")] and sum(path.exists() for path in old) <= 1
    assert _ids(lake) == [*range(101)] and lake.journal.position("shop") == before


def test_the_log_is_summed_up_by_itself_every_ten_commits_and_positions_stay(lake: Lake) -> None:
    told = Path(lake.journal.uri, "_delta_log", "_last_checkpoint")
    before = json.loads(told.read_text())["version"]
    for number in range(100, 110):
        _add(Lake(None, lake.root, "shop"), number, 1)
    assert json.loads(told.read_text())["version"] == before + 10
    assert _ids(lake) == [*range(110)] and str(lake.journal.position("shop")) == "109-0"


def test_a_gap_whose_commit_was_repeated_is_told_once(lake: Lake) -> None:
    lake.add_gap(Gap("1-0", "20-0", 7, "trimmed"))
    lake.add_gap(Gap("1-0", "30-0", 9, "trimmed"))
    assert lake.gaps() == (Gap("1-0", "30-0", 9, "trimmed"),)


def _run(*words: str) -> Any:
    ran = CliRunner().invoke(main, ["pipeline", "maintain", "--json", *words])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def test_the_command_keeps_a_lake_small_and_tells_its_versions(lake: Lake) -> None:
    place = ["--lake", lake.root]
    told = _run(*place, "--keep-hours", "0", "--forget", "id-99")
    assert told["forgotten"] == 1 and told["fewer_files"] > 5 < told["deleted_files"]
    history = _run(*place, "--history")["history"]
    assert {"WRITE", "DELETE", "OPTIMIZE"} <= {each["operation"] for each in history}
    assert _run(*place, "--restore", str(history[-1]["version"]))["restored"] == history[-1]["version"]


def test_a_lake_of_an_older_release_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "journal" / "batch=0").mkdir(parents=True)
    with pytest.raises(LakeError, match=r"before it used Delta.* ingest into a new lake"):
        Lake(None, str(tmp_path))
