"""Which rules history supports (NEW-7)."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pandas")

import pyarrow as pa
from click.testing import CliRunner

from celery_poison.cli import pipeline as commands
from celery_poison.cli.standalone import main
from celery_poison.extensions.proposals.proposal import sheet
from celery_poison.extensions.proposals.proposals import Proposals
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.pipeline.backtest import GRID
from celery_poison.pipeline.publishing import SOONEST, policy_of, proposals, refusals
from celery_poison.pipeline.replay import PolicyCost


def _row(number: int, **more: Any) -> dict[str, Any]:
    row = {
        "fingerprint": f"{number:016x}",
        "task": "t",
        "guilty_messages": 3,
        "deaths": 6,
        "alive": 0,
        "cleared": 0,
    }
    return {**row, **more}


def test_nothing_is_blocked_that_ever_ended_alive_or_kept_an_innocent_from_running() -> None:
    wrong = PolicyCost({}, wrong_blocks={f"{4:016x}"})
    rows = [
        _row(0),
        _row(1, alive=1),
        _row(2, cleared=1),
        _row(3, guilty_messages=1),
        _row(4),
        _row(5, fingerprint="no fingerprint'"),
        _row(6, deaths=99),
    ]
    assert [rule.fingerprint for rule in proposals(rows, [wrong, PolicyCost({})])] == [
        f"{6:016x}",
        f"{0:016x}",
    ]


NOW = datetime(2026, 3, 9, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        client.xadd(Keys().journal, {"v": "2"}, id=f"{round(NOW.timestamp() * 1000)}-0")
        yield Ledger(client, Keys())


def _refused(
    ledger: Ledger,
    *,
    upto: datetime | None = NOW,
    alive: int = 1,
    missing: Sequence[str] = (),
    oldest: timedelta = DAY,
    accept_missing: bool = False,
) -> list[str]:
    tables: Any = SimpleNamespace(
        as_of=SimpleNamespace(at=upto), left_out=missing, ask=lambda _: pa.table({"n": [alive]})
    )
    return [*refusals(ledger, tables, oldest, accept_missing)]


def test_nothing_is_proposed_where_healthy_runs_are_only_counted_or_there_are_none(ledger: Ledger) -> None:
    assert _refused(ledger) == []
    (told,) = _refused(ledger, alive=0)
    assert "no run in the lake ended alive" in told
    client: Any = ledger.client
    client.hset(Keys().tally, mapping={"shop.ship": 1, "shop.pay": 7})
    (told,) = _refused(ledger, accept_missing=True)
    assert told.startswith(
        'healthy runs of shop.pay, shop.ship were only counted (poison_journal="incidents")'
    )
    assert 'Set poison_journal="attempts" on every worker' in told and "redis-cli DEL" in told


def test_nothing_is_proposed_over_a_gap_or_rows_that_cannot_be_read_unless_a_person_accepts_it(
    ledger: Ledger,
) -> None:
    missing = [
        "GAP: 60 entries between 1-0 and 9-0: trimmed",
        "left out: part-0.parquet (7 entries): corrupt",
    ]
    told = _refused(ledger, missing=missing)
    assert [sentence.split(". ")[0] for sentence in told] == missing
    assert all("`celery poison pipeline check`" in each and "--accept-missing" in each for each in told)
    assert _refused(ledger, missing=missing, accept_missing=True) == []


def test_nothing_is_proposed_of_tables_that_are_far_behind_the_journal(ledger: Ledger) -> None:
    (told,) = _refused(ledger, upto=NOW - 2 * DAY)
    assert told.startswith(
        "the tables end 48 hours before the journal in Redis, more than --max-age 24: run `"
    )
    assert _refused(ledger, upto=NOW - 2 * DAY, oldest=3 * DAY) == []
    assert datetime.now(UTC) - NOW > DAY and _refused(ledger) == [], "nothing happened since"
    (told,) = _refused(ledger, upto=None)
    assert told == "the lake is empty: run `celery poison pipeline all` first"
    client: Any = ledger.client
    client.delete(Keys().journal)
    (told,) = _refused(ledger)
    assert "before the clock (the journal in Redis is empty)" in told


def test_what_is_missing_is_accepted_with_a_reason_only(redis_url: str) -> None:
    words = ["pipeline", "publish", "--redis", redis_url, "--accept-missing"]
    ran = CliRunner().invoke(main, words)
    assert (ran.exit_code, "say why it does not matter" in ran.output) == (2, True)


def test_a_rule_tells_what_it_would_have_caught_and_that_no_innocent_was_among_them() -> None:
    caught = PolicyCost(SOONEST, caught=Counter({f"{0:016x}": 5}))
    later = PolicyCost({"block_fingerprint_after": 3}, caught=Counter({f"{0:016x}": 1}))
    (rule,) = proposals([_row(0)], [later, caught])
    assert (rule.deaths, rule.messages, rule.caught, rule.innocents) == (6, 3, 5, 0)
    assert SOONEST in GRID


def test_only_options_that_can_be_changed_at_run_time_are_proposed() -> None:
    policy = {"max_crashes": 1, "trial": False, "block_fingerprint_after": 3}
    assert policy_of(PolicyCost(policy)) == {"max_crashes": 1, "block_fingerprint_after": 3}
    assert policy_of(PolicyCost(policy, wrong_blocks={"f"})) == {"max_crashes": 1}


def test_sheets_that_would_do_the_same_have_one_effect() -> None:
    rules = proposals([_row(0), _row(1)], [])
    assert sheet([], {}, ["why"])[1] == ""
    assert sheet(rules, {}, [])[1] == sheet(rules[::-1], {}, ["why"])[1] != sheet(rules, {"a": 1}, [])[1]


def test_who_has_no_spark_reads_and_applies_all_the_same(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = commands.find_spec
    monkeypatch.setattr(commands, "find_spec", lambda name: None if name == "pyspark" else found(name))
    with open_redis(redis_url) as client:
        ledger = Ledger(client, Keys())
        text, effect = sheet(proposals([_row(7)], []), {"max_crashes": 1}, ["why"])
        _, version = Proposals(ledger).publish(text, effect, lasts_ms=3_600_000, actor="cron", journalled="")

    def run(*words: str, status: int = 0) -> str:
        ran = CliRunner().invoke(main, ["pipeline", "publish", "--redis", redis_url, *words])
        assert ran.exit_code == status, ran.output
        return ran.output

    shown = run("--show")
    assert f"fingerprint {7:016x} of t: pipeline: 6 deaths" in shown and "0 innocents" in shown
    assert "policy of every task: max_crashes=1" in shown and f"--apply {version}" in shown
    assert "there is no proposal 3" in run("--apply", "3", status=1)
    assert "one at a time" in run("--show", "--rollback", status=2)
    assert run("--apply", str(version)) == (f"applied  proposal {version}: 1 rules in force, 1 options set\n")
    assert "applied already" in run("--apply", str(version), status=1)
    assert run("--show") == "nothing is proposed\n"
    assert run("--rollback") == "took back 1 rules, and the policy is as it was before\n"
    lake = tmp_path / "lake"
    lake.mkdir()
    assert "pip install 'celery-poison[spark]'" in run("--lake", str(lake), status=1)


def test_reading_a_proposal_imports_no_spark() -> None:
    code = "import sys, celery_poison.cli.pipeline_publish; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
