"""The way back: a history whose truth is known becomes rules in Redis that block the guilty only (NEW-7)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.blocks import read_rules
from celery_poison.ledger import Keys, Ledger, policies
from celery_poison.ledger.connection import open_redis


def _rules(url: str) -> set[str]:
    with open_redis(url) as client:
        _, raw, now = policies.read_blocks(Ledger(client, Keys()))
        return {rule.name for rule in read_rules(raw, now)[0].values()}


def _decide(options: dict[str, Any], **asked: Any) -> None:
    from celery_poison.pipeline.stages import run_publish

    assert run_publish.run_without_spark({**options, **asked})


def test_NEW_7_what_is_applied_is_what_was_read_and_one_rollback_takes_it_back(
    spark: Any,
    history: Path,
    attempts_of_history: Any,
    tmp_path: Path,
    redis_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from celery_poison.pipeline import tables
    from celery_poison.pipeline.stages import run_publish

    attempts_of_history.write.parquet(str(tmp_path / "attempts"))
    tables.kin(attempts_of_history).write.parquet(str(tmp_path / "kin"))
    tables.fingerprints(attempts_of_history).write.parquet(str(tmp_path / "fingerprints"))
    lake: Any = SimpleNamespace(root=str(tmp_path), table=lambda name: str(tmp_path / name))
    options = {"url": redis_url, "least": 2, "hours": 1.0, "actor": "cron", "as_json": True}
    run_publish.run(spark, lake, options)
    proposed = json.loads(capsys.readouterr().out)["proposal"]
    assert _rules(redis_url) == set()
    guilty = set(json.loads((history / "_truth.json").read_text())["culprits"]["fingerprint"])
    assert len(guilty) > 20
    assert guilty == {rule["fingerprint"] for rule in proposed["rules"]}
    assert sum(rule["caught"] for rule in proposed["rules"]) > len(guilty) / 2
    assert {rule["innocents"] for rule in proposed["rules"]} == {0}
    _decide(options, show=True)
    assert json.loads(capsys.readouterr().out) == {"proposal": proposed}
    _decide(options, apply=proposed["version"])
    applied = json.loads(capsys.readouterr().out)["applied"]
    assert (applied["rules"], _rules(redis_url)) == (len(guilty), guilty)
    # What is in force is not proposed, and what was taken back neither.
    run_publish.run(spark, lake, options)
    assert json.loads(capsys.readouterr().out) == {"decided_before": len(guilty), "proposal": None}
    _decide(options, rollback=True)
    assert json.loads(capsys.readouterr().out)["taken_back"]["rules"] == len(guilty)
    run_publish.run(spark, lake, {**options, "at_once": True})
    assert json.loads(capsys.readouterr().out)["proposal"] is None and _rules(redis_url) == set()
    run_publish.run(spark, lake, {**options, "at_once": True, "again": True, "as_json": False})
    assert f"{len(guilty)} rules in force" in capsys.readouterr().out and _rules(redis_url) == guilty
