"""What is told of a run."""

from __future__ import annotations

from pathlib import Path

from tests.chaos import report
from tests.chaos.judge import Outcome, judge
from tests.chaos.plan import make_plan
from tests.chaos.runs import Blow, Facts
from tests.chaos.stage import Options
from tests.chaos.world import facts, kill, run


def outcome(given: Facts) -> Outcome:
    return Outcome(make_plan(["warm"], 10, 1, 3), given, judge(given), 12.34, {"a": ["the story"]})


def test_many_failures_of_one_kind_are_counted_and_some_are_shown() -> None:
    given = outcome(facts(*(run(f"m{n}", 1, None) for n in range(37))))
    told = list(report.lines(report.as_dict(given, Options(), 7, 0.5)))
    assert told[0].startswith("seed 7, prefork on redis: 37 messages, 0 of them poison, ")
    assert told[0].endswith("; FAILED")
    assert told[1:31] == [f"FAILED  lost: m{n} begun 1 times" for n in range(30)]
    assert told[31:] == ["FAILED  37 lost altogether", "", "The story of a:", "the story"]


def test_a_program_reads_what_failed_and_what_was_excused() -> None:
    given = facts(run("a", 1, None), kill("p", 5), blows=(Blow("redis-empty", 1, 2, gone=("a",)),))
    told = report.as_dict(outcome(given), Options(), 7, 0.5)
    assert told["ok"] is True and told["failed"] == []
    assert told["excused"] == {"lost: it was in Redis when that was emptied": 1}
    assert (told["seed"], told["messages"], told["poisons"], told["pool"]) == (7, 2, 1, "prefork")
    assert told["faults"] == {"warm": len(make_plan(["warm"], 10, 1, 3))}


def test_rows_make_a_table_with_one_head(tmp_path: Path) -> None:
    held, failed = outcome(facts(run("a", 1, 2))), outcome(facts(run("a", 1, None), run("b", 1, None)))
    for one in (held, failed):
        report.append_row(tmp_path / "runs.md", report.as_dict(one, Options("threads", plain=True), 7, 20))
    head, ruler, *rows = (tmp_path / "runs.md").read_text().splitlines()
    assert f"{head}\n{ruler}\n" == report.HEAD
    assert [row.count("|") for row in rows] == [head.count("|")] * 2
    assert rows[0].startswith("| 7 | plain threads, redis, cell | 20 | ")
    assert "| none |" in rows[0] and "| 2 lost |" in rows[1]
