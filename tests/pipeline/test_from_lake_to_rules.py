"""The way back: a history whose truth is known becomes rules in Redis that block the guilty only (NEW-7).

No Spark: the tables are made in DuckDB.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyspark")

from celery_poison.cli import pipeline_commands as commands
from celery_poison.cli import pipeline_publish as publish
from celery_poison.errors import ProposalRefused
from celery_poison.ledger import Keys, Ledger, policies
from celery_poison.ledger.connection import open_redis
from celery_poison.pipeline.replay import DEFAULTS, PolicyCost
from celery_poison.pipeline.window import Window
from celery_poison.rules.blocks import read_rules
from tests.pipeline import tallied

AS_OF = "as of version 41 of the lake, up to now"


@pytest.fixture
def derived(history: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the command takes for the lake's tables."""
    from celery_poison.pipeline import derived

    made = SimpleNamespace(
        ask=tallied.history(history),
        as_of=SimpleNamespace(says=lambda: AS_OF, at=datetime.now(UTC)),
        left_out=[],
        window=lambda since, until: Window(),
    )
    monkeypatch.setattr(derived, "Derived", lambda *_: made)
    return made


def _rules(url: str) -> set[str]:
    with open_redis(url) as client:
        _, raw, now = policies.read(Ledger(client, Keys()), Keys().blocks)
        return {rule.name for rule in read_rules(raw, now)[0].values()}


def _decide(options: dict[str, Any], **asked: Any) -> None:
    assert publish.decide({**options, **asked})


def _options(url: str) -> dict[str, Any]:
    return {"url": url, "least": 2, "hours": 1.0, "actor": "cron", "as_json": True}


def test_NEW_7_what_is_applied_is_what_was_read_and_one_rollback_takes_it_back(
    history: Path, derived: SimpleNamespace, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake: Any = None
    options = _options(redis_url)
    publish.publish(None, lake, options)
    told = json.loads(capsys.readouterr().out)
    proposed = told["proposal"]
    assert told["grounds"] == proposed["reasons"][0] == AS_OF
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
    publish.publish(None, lake, options)
    again = json.loads(capsys.readouterr().out)
    assert again == {"decided_before": len(guilty), "grounds": AS_OF, "proposal": None}
    _decide(options, rollback=True)
    assert json.loads(capsys.readouterr().out)["taken_back"]["rules"] == len(guilty)
    publish.publish(None, lake, {**options, "at_once": True})
    assert json.loads(capsys.readouterr().out)["proposal"] is None and _rules(redis_url) == set()
    publish.publish(None, lake, {**options, "at_once": True, "again": True, "as_json": False})
    said = capsys.readouterr().out
    assert f"{len(guilty)} rules in force" in said and AS_OF in said and _rules(redis_url) == guilty


def test_the_command_refuses_what_it_cannot_know_and_proposes_when_a_person_accepts_it(
    derived: SimpleNamespace, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake: Any = None
    with open_redis(redis_url) as client:
        client.hset(Keys().tally, "shop.pay", "7")
        with pytest.raises(ProposalRefused, match=r"nothing is proposed: healthy runs of shop\.pay"):
            publish.publish(None, lake, _options(redis_url))
        client.delete(Keys().tally)
        client.xadd(Keys().journal, {"v": "2"})
        derived.as_of.at -= timedelta(days=3)
        with pytest.raises(ProposalRefused, match="the tables end 72 hours before the journal in Redis"):
            publish.publish(None, lake, _options(redis_url))
        derived.left_out.append("GAP: 60 entries between 1-0 and 9-0: trimmed")
        old = {**_options(redis_url), "max_age": 100.0}
        with pytest.raises(ProposalRefused, match="GAP: 60 entries"):
            publish.publish(None, lake, old)
        publish.publish(None, lake, {**old, "accept_missing": True, "note": "only pings were lost"})
        assert json.loads(capsys.readouterr().out)["proposal"]["rules"]
        (_, last), *_ = client.xrevrange(Keys().journal, count=1)
        assert last[b"note"].endswith(f" options, {AS_OF}: only pings were lost".encode())


def test_an_option_that_is_in_force_or_that_a_person_said_no_to_is_not_proposed(
    derived: SimpleNamespace,
    redis_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best = PolicyCost({"max_crashes": 1, "max_failures": 2})
    monkeypatch.setattr(commands, "replayed", lambda *_: ([], best, ["why"], DEFAULTS))
    options, lake = {**_options(redis_url), "least": 99}, cast(Any, None)
    with open_redis(redis_url) as client:
        Ledger(client, Keys()).rules.set("*", '{"max_crashes": 1}', 0, "ann", "")
    publish.publish(None, lake, options)
    told = json.loads(capsys.readouterr().out)["proposal"]
    assert (told["rules"], told["policy"], told["reasons"]) == ([], {"max_failures": 2}, [AS_OF, "why"])
    _decide(options, dismiss=told["version"])
    publish.publish(None, lake, {**options, "as_json": False})
    assert "nothing is proposed" in capsys.readouterr().out
    publish.publish(None, lake, {**options, "again": True, "at_once": True})
    assert '"proposal": null' in capsys.readouterr().out, "a policy is for a person"
    publish.publish(None, lake, {**options, "again": True, "as_json": False})
    assert "policy of every task: max_failures=2\n  as of version 41" in capsys.readouterr().out
