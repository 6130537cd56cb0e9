"""The way back: a history whose truth is known becomes rules in Redis that block the guilty only (NEW-7)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.blocks import read_rules
from celery_poison.ledger import Keys, Ledger, blocks
from celery_poison.ledger.connection import open_redis


def _rules(url: str) -> set[str]:
    with open_redis(url) as client:
        _, raw, now = blocks.read(Ledger(client, Keys()))
        return {rule.name for rule in read_rules(raw, now)[0].values()}


def test_what_is_put_in_force_is_guilty_and_one_rollback_takes_it_back(
    spark: Any,
    history: Path,
    attempts_of_history: Any,
    tmp_path: Path,
    redis_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from celery_poison.pipeline import run_publish, tables

    attempts_of_history.write.parquet(str(tmp_path / "attempts"))
    tables.fingerprints(attempts_of_history).write.parquet(str(tmp_path / "fingerprints"))
    lake: Any = SimpleNamespace(root=str(tmp_path), table=lambda name: str(tmp_path / name))
    options = {"url": redis_url, "least": 2, "hours": 1.0, "actor": "cron", "as_json": True}
    run_publish.run(spark, lake, options)
    assert _rules(redis_url) == set()
    capsys.readouterr()
    run_publish.run(spark, lake, {**options, "apply": True})
    told = json.loads(capsys.readouterr().out)
    guilty = set(json.loads((history / "_truth.json").read_text())["culprits"]["fingerprint"])
    assert len(guilty) > 20
    assert _rules(redis_url) == guilty == {rule["fingerprint"] for rule in told["rules"]}
    run_publish.run(spark, lake, {**options, "rollback": True})
    assert _rules(redis_url) == set()
