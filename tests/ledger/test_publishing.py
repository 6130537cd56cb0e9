"""The pipeline's rules in the ledger: proposed, put in force and taken back, each in one step (NEW-7)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from celery_poison.blocks import Kind, read_rules
from celery_poison.ledger import Keys, Ledger, blocks, published
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.queries import Queries

RULES = [{"fingerprint": f"{n:016x}", "task": "shop.pdf", "note": "why"} for n in range(3)]
SHEET = json.dumps({"rules": RULES, "policy": {"max_crashes": 1}, "reasons": ["because"]})
HOUR = 3_600_000


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        yield Ledger(client, Keys())


def _in_force(ledger: Ledger) -> dict[str, str]:
    _, raw, now = blocks.read(ledger)
    rules, complaints = read_rules(raw, now)
    assert not complaints
    return {rule.name: rule.actor for rule in rules.values()}


def _events(ledger: Ledger) -> list[str]:
    return [entry["event"] for entry in Queries(ledger).journal()]


def test_a_proposal_blocks_nothing_and_waits_for_a_person(ledger: Ledger) -> None:
    version, count = ledger.publish(SHEET, force=False, lasts_ms=HOUR, actor="cron")
    told = published.proposed(ledger)
    assert told is not None and (told["version"], told["policy"]) == (version, {"max_crashes": 1})
    assert (count, _in_force(ledger), blocks.version(ledger), _events(ledger)) == (0, {}, 0, [])


def test_rules_are_put_in_force_together_and_taken_back_together(ledger: Ledger) -> None:
    ledger.publish(SHEET, force=False, lasts_ms=HOUR, actor="cron")
    _, count = ledger.publish(SHEET, force=True, lasts_ms=HOUR, actor="ann")
    known = blocks.version(ledger)
    assert (count, set(_in_force(ledger).values()), published.proposed(ledger)) == (3, {"ann"}, None)
    assert ledger.retract("ben") == 3
    assert _in_force(ledger) == {} and blocks.version(ledger) > known
    assert sorted(_events(ledger)) == ["blocked"] * 3 + ["unblocked"] * 3
    assert ledger.retract("ben") == 0


def test_a_persons_rule_is_neither_replaced_nor_taken_back(ledger: Ledger) -> None:
    name = str(RULES[0]["fingerprint"])
    told = {"task": "shop.pdf", "actor": "eva", "note": "mine", "said": "mine"}
    ledger.block(Kind.FINGERPRINT, name, lasts_ms=0, **told)
    assert ledger.publish(SHEET, force=True, lasts_ms=HOUR, actor="cron")[1] == 2
    # Blocked anew by a person after the pipeline did.
    ledger.block(Kind.FINGERPRINT, str(RULES[1]["fingerprint"]), lasts_ms=0, **told)
    assert ledger.retract("ben") == 1
    assert set(_in_force(ledger).values()) == {"eva"}


def test_two_sheets_are_taken_back_by_one_rollback(ledger: Ledger) -> None:
    for rules in (RULES[:1], RULES[1:]):
        sheet = json.dumps({"rules": rules, "policy": {}, "reasons": []})
        ledger.publish(sheet, force=True, lasts_ms=HOUR, actor="cron")
    assert len(_in_force(ledger)) == 3
    assert ledger.retract("ben") == 3


def test_what_is_over_is_no_proposal_and_no_rule(ledger: Ledger) -> None:
    ledger.publish(SHEET, force=True, lasts_ms=0, actor="cron")
    ledger.publish(SHEET, force=False, lasts_ms=0, actor="cron")
    assert published.proposed(ledger) is None and _in_force(ledger) == {}


def test_what_nobody_understands_is_no_proposal(ledger: Ledger) -> None:
    for raw in ("{", "[]", "{}", "7", '{"until_ms": "x"}'):
        ledger.client.hset(ledger.keys.published, mapping={"proposed": raw, "applied": raw})
        assert published.proposed(ledger) is None
        assert ledger.retract("ben") == 0
