"""The block list in the ledger: convictions counted, rules put in and taken out, each one step (NEW-3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from celery_poison.errors import MessageNotFound
from celery_poison.ledger import Keys, Ledger, policies
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.quarantine import REMEMBER_CONVICTIONS_MS
from celery_poison.model import Guilt, Start
from celery_poison.rules.blocks import Rule, RuleKind, read_rules

FP = "0123456789abcdef"


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        yield Ledger(client, Keys())


def _convict(ledger: Ledger, mid: str, block_after: int | None, fingerprint: str = FP) -> bool:
    start = Start("R", f"b.{mid}", "w/b", 7, 1, 1, 0, f"id-{mid}", "shop.convert", "celery", 2, 5, 10, 1)
    fields: dict[str, Any] = {"body": b"x", "fingerprint": fingerprint}
    return ledger.quarantine.store(
        mid, start, cause="signal:9", reason="x", fields=fields, block_after=block_after
    )


def _rules(ledger: Ledger) -> list[Rule]:
    _, raw, now = policies.read(ledger, ledger.keys.blocks)
    rules, complaints = read_rules(raw, now)
    assert not complaints
    return [*rules.values()]


def _told(ledger: Ledger) -> list[tuple[str, ...]]:
    wanted = ("event", "task", "actor", "note")
    found = [tuple(entry[name] for name in wanted) for entry in ledger.read.journal()]
    return [row for row in found if row[0] != "quarantined"]


def _block(ledger: Ledger, kind: RuleKind, name: str, lasts_ms: int = 0) -> int:
    told = {"task": "shop.convert", "actor": "ann", "note": "why", "journalled": f"{kind} {name}: why"}
    return ledger.rules.block(kind, name, lasts_ms=lasts_ms, **told)


def _convictions(ledger: Ledger) -> int:
    count: Any = ledger.client.get(ledger.keys.convictions(FP))
    return int(count or 0)


def test_NEW_3_the_nth_conviction_blocks_the_fingerprint_once_and_for_a_while(ledger: Ledger) -> None:
    assert all(_convict(ledger, mid, 3) for mid in ("m1", "m2"))
    assert _convict(ledger, "m2", 3) is False, "the same message again"
    assert not _rules(ledger) and _convictions(ledger) == 2
    _convict(ledger, "m3", 3)
    (rule,) = _rules(ledger)
    assert (rule.kind, rule.name, rule.task, rule.convictions) == (
        RuleKind.FINGERPRINT,
        FP,
        "shop.convert",
        3,
    )
    assert rule.until is not None and round(rule.until - rule.since) == REMEMBER_CONVICTIONS_MS / 1000
    version = policies.version(ledger, ledger.keys.blocks)
    assert version > 10**12
    _convict(ledger, "m4", 3)
    assert policies.version(ledger, ledger.keys.blocks) == version, "blocked already"
    assert _told(ledger) == [("blocked", "shop.convert", "", f"fingerprint {FP} after 3 convictions")]
    ttl: Any = ledger.client.pttl(ledger.keys.convictions(FP))
    assert 0 < ttl <= REMEMBER_CONVICTIONS_MS


def test_NEW_3_convictions_count_where_nothing_is_blocked_and_others_do_not(ledger: Ledger) -> None:
    _convict(ledger, "m1", 0)
    _convict(ledger, "m2", None)
    _convict(ledger, "m3", 1, fingerprint="f" * 16)
    assert _convictions(ledger) == 1
    assert [rule.name for rule in _rules(ledger)] == ["f" * 16]


def test_NEW_3_a_count_that_is_garbage_does_not_keep_a_message_out_of_quarantine(ledger: Ledger) -> None:
    ledger.client.set(ledger.keys.convictions(FP), "many")
    assert _convict(ledger, "m1", 1)
    assert ledger.read.record("m1") and not _rules(ledger)


def test_NEW_3_what_a_person_blocks_stays_until_unblocked_or_over(ledger: Ledger) -> None:
    first = _block(ledger, RuleKind.TASK, "shop.convert")
    second = _block(ledger, RuleKind.FINGERPRINT, FP, lasts_ms=60_000)
    assert policies.version(ledger, ledger.keys.blocks) == second > first
    task, fingerprint = sorted(_rules(ledger), key=lambda rule: rule.kind, reverse=True)
    assert (task.until, task.actor, task.note) == (None, "ann", "why")
    assert fingerprint.until == pytest.approx(fingerprint.since + 60)
    third = ledger.rules.unblock(RuleKind.TASK, "shop.convert", actor="bob", journalled="task shop.convert")
    assert third > second and _rules(ledger) == [fingerprint]
    with pytest.raises(MessageNotFound, match=r"task shop\.convert is not blocked"):
        ledger.rules.unblock(RuleKind.TASK, "shop.convert", actor="bob", journalled="again")
    assert policies.version(ledger, ledger.keys.blocks) == third
    assert _told(ledger) == [
        ("blocked", "shop.convert", "ann", "task shop.convert: why"),
        ("blocked", "shop.convert", "ann", f"fingerprint {FP}: why"),
        ("unblocked", "shop.convert", "bob", "task shop.convert"),
    ]


def test_NEW_3_what_is_over_is_no_rule_and_goes_with_the_next_change(ledger: Ledger) -> None:
    over = json.dumps({"task": "shop.convert", "since_ms": 1, "until_ms": 2, "actor": "ann"})
    ledger.client.hset(ledger.keys.blocks, f"fingerprint:{FP}", over)
    ledger.client.hset(ledger.keys.blocks, "task:garbage", "{")
    with pytest.raises(MessageNotFound):
        ledger.rules.unblock(RuleKind.FINGERPRINT, FP, actor="ann", journalled="")
    ledger.client.hset(ledger.keys.blocks, f"fingerprint:{FP}", over)
    _convict(ledger, "m1", 1)
    (rule,) = read_rules(*policies.read(ledger, ledger.keys.blocks)[1:])[0].values()
    assert rule.convictions == 1, "blocked anew"
    assert ledger.rules.unblock(RuleKind.TASK, "garbage", actor="ann", journalled="")


def test_NEW_3_unblocking_forgets_the_convictions(ledger: Ledger) -> None:
    _convict(ledger, "m1", 1)
    ledger.rules.unblock(RuleKind.FINGERPRINT, FP, actor="ann", journalled="")
    assert _convictions(ledger) == 0
    _convict(ledger, "m2", 2)
    assert not _rules(ledger)


def test_NEW_8_what_is_only_observed_is_told_and_counted_once_and_changes_no_state(ledger: Ledger) -> None:
    start = Start("R", "b.1", "w/b", 7, 1, 1, 0, "id", "shop.convert", "celery", 2, 5, 10, 1)
    ledger.messages.crash("m1", start, cause="signal:9", shared=False)
    for _ in range(2):
        ledger.quarantine.observe("m1", start, cause="signal:9", reason="why")
    other = start._replace(id="other")
    ledger.quarantine.observe("m2", other, cause="payload", reason="too large")
    queries = ledger.read
    assert queries.would_quarantine() == {"payload": 1, "signal:9": 1}
    assert [entry["note"] for entry in queries.journal() if entry["event"] == "would_quarantine"] == [
        "why",
        "too large",
    ]
    assert queries.totals()["quarantined"] == 0
    assert queries.lineage("other") is None, "what has no history gets none"
    again = start._replace(token="b.2")
    ledger.messages.acquit("m1", again, Guilt.CLEARED)
    assert queries.lineage("id") is None
