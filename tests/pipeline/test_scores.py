"""What scores of the literature find without trials; the docs hold the figure (NEW-7)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")

ROOT = Path(__file__).resolve().parents[2]

#: Starts that would be there without any trial: the first of each message. What it runs after a death is one.
_FIRST = """
with starts as (
  select *, row_number() over (partition by id order by "at", seq) as nth
  from read_parquet('{0}/**/*.parquet') where event in ('finished', 'crashed') and fingerprint is not null
)"""
_COUNTS = f"""{_FIRST}, deaths as (
  select fingerprint, coalesce(incident, token) as death from starts where nth = 1 and event = 'crashed'
), passed as (
  select fingerprint, count(*) as passed from starts where nth = 1 and event = 'finished' group by fingerprint
)
select fingerprint, count(distinct death) as failed, coalesce(any_value(passed), 0),
  (select count(distinct death) from deaths), (select sum(passed) from passed)
from deaths left join passed using (fingerprint) group by fingerprint
"""
_PROVED = f"""{_FIRST}
select fingerprint from starts group by fingerprint
having count(*) filter (where event = 'crashed' and outcome = 'exact' and crashes > 1) > 0
  and count(*) filter (where event = 'finished') = 0
"""


def _ochiai(failed: int, passed: int, failed_total: int, _: int) -> float:
    """Abreu, Zoeteweij and van Gemund, 2007."""
    return failed / (failed_total * (failed + passed)) ** 0.5


def _tarantula(failed: int, passed: int, failed_total: int, passed_total: int) -> float:
    """Jones and Harrold, 2005."""
    of_failed = failed / failed_total
    return of_failed / (of_failed + passed / passed_total)


def test_trials_find_the_culprits_and_scores_do_not_as_the_docs_say(history: Path) -> None:
    """With the deaths and the reruns taken away that exist only because of trials."""
    import duckdb

    proved = {row[0] for row in duckdb.sql(_PROVED.format(history)).fetchall()}
    rows: list[tuple[Any, ...]] = duckdb.sql(_COUNTS.format(history)).fetchall()

    def found(score: Callable[[int, int, int, int], float]) -> int:
        ranked = sorted(rows, key=lambda row: (-score(*row[1:]), row[0]))
        return sum(row[0] in proved for row in ranked[: len(proved)])

    by_chance = round(len(proved) ** 2 / len(rows))
    text = " ".join((ROOT / "benchmarks" / "README.md").read_text().split())
    told = re.search(
        r"of (\d+) fingerprints that trials proved deadly, Ochiai has (\d+) in its first \d+ places and"
        r" Tarantula (\d+), where chance alone would have (\d+)",
        text,
    )
    assert told, "the docs tell the honest figure"
    assert [int(n) for n in told.groups()] == [len(proved), found(_ochiai), found(_tarantula), by_chance]
    assert found(_ochiai) < len(proved) / 2
