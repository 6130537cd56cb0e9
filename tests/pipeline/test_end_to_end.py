"""From crashes of real workers to a rule that they obey, and back, by commands as users type them (NEW-7)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery.bin.celery import celery
from click.testing import CliRunner

from celery_poison.model import MessageRecord
from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.apps.harness import TAG, Fleet


@pytest.fixture
def pipeline(spark: Any, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """`celery -A … poison pipeline … --json`, in the session that is there already."""
    from celery_poison.pipeline import session

    for name, value in fleet.environ().items():
        if name != TAG:  # else what this process starts would count as left behind by the fleet's workers
            monkeypatch.setenv(name, value)
    # Celery's command takes BROKER_URL for its --broker, and leaves it to every later app of this process.
    monkeypatch.setenv("CELERY_BROKER_URL", fleet.broker_url)
    monkeypatch.setenv("CELERY_RESULT_BACKEND", fleet.backend_url)
    monkeypatch.setattr(session, "open_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)

    def run(*words: str) -> Any:
        lake = ["--lake", str(tmp_path / "lake"), "--json"]
        ran = CliRunner().invoke(celery, ["-A", "tests.apps.fleet", "poison", "pipeline", *words, *lake])
        assert ran.exit_code == 0, (words, ran.output, ran.exception)
        return json.loads(ran.stdout)

    return run


def _kept(fleet: Fleet, count: int) -> list[MessageRecord]:
    wait_until(lambda: len(fleet.quarantine.list()) >= count, what=lambda: fleet.log_text()[-5000:])
    return fleet.quarantine.list()


def _awaited(fleet: Fleet, words: str) -> None:
    wait_until(lambda: words in fleet.log_text(), what=lambda: fleet.log_text()[-3000:])


@pytest.mark.matrix
def test_NEW_7_what_killed_workers_is_found_and_runs_no_more_until_it_is_rolled_back(
    fleet: Fleet, pipeline: Callable[..., Any]
) -> None:
    with fleet.worker(concurrency=2) as worker:
        worker.wait_ready()
        healthy = [fleet.send("healthy", n) for n in range(10)]
        for _ in range(2):
            fleet.send("kill_child", 7)
        convicted = _kept(fleet, 2)
        assert [result.get(timeout=PATIENCE) for result in healthy] == [*range(10)]
        guilty = convicted[0].fingerprint
        deaths = fleet.marks.count("kill_child", "start")

        assert pipeline("ingest")["rows"] > 14
        blamed = [row for row in pipeline("blame") if row["dimension"] == "fingerprint"]
        assert [(row["key"], row["standing"]) for row in blamed] == [(guilty, "guilty")]
        told = pipeline("publish")["proposal"]
        assert [rule["fingerprint"] for rule in told["rules"]] == [guilty]
        assert pipeline("publish", "--apply", str(told["version"]))["applied"]["rules"] == 1
        _awaited(fleet, f"fingerprint {guilty} is blocked")

        fleet.send("kill_child", 7)
        (new,) = [record for record in _kept(fleet, 3) if record.id not in {each.id for each in convicted}]
        assert (new.cause, new.crashes, new.fingerprint) == ("blocked", 0, guilty)
        assert fleet.marks.count("kill_child", "start") == deaths, "it did not run"
        fleet.marks.repair()
        assert fleet.send("kill_child", 8).get(timeout=PATIENCE) == "repaired", "other arguments run"

        assert pipeline("publish", "--rollback")["taken_back"]["rules"] == 1
        _awaited(fleet, "is not blocked any more")
        assert fleet.send("kill_child", 7).get(timeout=PATIENCE) == "repaired"
