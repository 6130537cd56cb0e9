"""The pipeline's proposals in the ledger: applied as read, dismissed, taken back in one step (NEW-7)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from celery_poison.errors import ProposalRefused
from celery_poison.extensions.proposals.proposal import Proposal, ProposedRule, sheet
from celery_poison.extensions.proposals.proposals import Proposals
from celery_poison.ledger import Keys, Ledger, policies
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.scripts import Code
from celery_poison.rules.blocks import RuleKind, read_rules

RULES = [ProposedRule(fingerprint=f"{n:016x}", task="shop.pdf", note="why", caught=n) for n in range(3)]
POLICY = {"max_crashes": 1, "max_payload_bytes": 100_000_000}
HOUR = 3_600_000


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        yield Ledger(client, Keys())


def _publish(
    ledger: Ledger, rules: Any = RULES, policy: Any = None, lasts_ms: int = HOUR
) -> tuple[Code, int]:
    text, effect = sheet(rules, policy or {}, ["because"])
    return Proposals(ledger).publish(text, effect, lasts_ms=lasts_ms, actor="cron", journalled="so much")


def _waiting(ledger: Ledger) -> Proposal | None:
    return Proposals(ledger).waiting()


def _in_force(ledger: Ledger) -> dict[str, str]:
    _, raw, now = policies.read(ledger, ledger.keys.blocks)
    rules, complaints = read_rules(raw, now)
    assert not complaints
    return {rule.name: rule.actor for rule in rules.values()}


def _every_task(ledger: Ledger) -> Any:
    return json.loads(policies.read(ledger, ledger.keys.policy)[1].get("*", b"null"))


def _told(ledger: Ledger, event: str) -> list[tuple[str, str]]:
    entries = ledger.read.journal()
    return [(entry["actor"], entry["note"]) for entry in entries if entry["event"] == event]


def test_NEW_7_a_proposal_puts_nothing_in_force_and_waits_for_a_person(ledger: Ledger) -> None:
    code, version = _publish(ledger, policy=POLICY)
    told = _waiting(ledger)
    assert told is not None and code is Code.OK
    assert (told.version, [*told.rules], told.policy, told.actor) == (version, RULES, POLICY, "cron")
    assert told.until - told.at == 3600 and (told.caught, told.reasons) == (3, ["because"])
    assert (_in_force(ledger), policies.version(ledger, ledger.keys.blocks), _every_task(ledger)) == (
        {},
        0,
        None,
    )
    assert _told(ledger, "proposal_made") == [("cron", f"{version}: so much")]


def test_NEW_7_a_person_applies_what_was_read_and_one_command_takes_all_of_it_back(ledger: Ledger) -> None:
    ledger.rules.set("*", '{"max_failures":7}', 0, "eva", "")
    _, version = _publish(ledger, policy=POLICY)
    assert Proposals(ledger).apply(version, actor="ann", note="seen") == (3, 2)
    known = policies.version(ledger, ledger.keys.blocks), policies.version(ledger, ledger.keys.policy)
    assert set(_in_force(ledger).values()) == {"ann"} and _waiting(ledger) is None
    assert _every_task(ledger) == {**POLICY, "max_failures": 7}
    assert _told(ledger, "proposal_applied") == [("ann", f"{version}: 3 rules, 2 options: seen")]
    assert ("ann", f"fingerprint {0:016x}: why (proposal {version})") in _told(ledger, "blocked")
    assert Proposals(ledger).retract("ben", "they complain") == (3, True)
    assert _in_force(ledger) == {} and _every_task(ledger) == {"max_failures": 7}
    assert (
        policies.version(ledger, ledger.keys.blocks) > known[0]
        and policies.version(ledger, ledger.keys.policy) > known[1]
    )
    assert len(_told(ledger, "unblocked")) == 3
    assert _told(ledger, "proposal_taken_back") == [("ben", "3 rules, 1 policies: they complain")]
    assert Proposals(ledger).retract("ben") == (0, False)
    assert len(_told(ledger, "proposal_taken_back")) == 1


def test_NEW_7_only_the_newest_is_applied_unless_somebody_says_so(ledger: Ledger) -> None:
    _, old = _publish(ledger, RULES[:1])
    _, new = _publish(ledger, RULES[1:])
    assert new > old
    with pytest.raises(ProposalRefused, match=f"{old} is not the newest any more; {new} waits"):
        Proposals(ledger).apply(old, actor="ann")
    with pytest.raises(ProposalRefused, match="not the newest"):
        Proposals(ledger).dismiss(old, actor="ann")
    assert _in_force(ledger) == {}
    Proposals(ledger).apply(old, actor="ann", replaced=True)
    assert [*_in_force(ledger)] == [RULES[0].fingerprint]
    told = _waiting(ledger)
    assert told is not None and told.version == new


def test_NEW_7_what_is_decided_over_or_unknown_is_refused_in_words(ledger: Ledger) -> None:
    _, version = _publish(ledger)
    Proposals(ledger).apply(version, actor="ann")
    with pytest.raises(ProposalRefused, match="was applied already, by ann"):
        Proposals(ledger).apply(version, actor="ben", replaced=True)
    with pytest.raises(ProposalRefused, match="there is no proposal 7; none waits"):
        Proposals(ledger).apply(7, actor="ben")
    _, version = _publish(ledger, RULES[:1], lasts_ms=0)
    assert _waiting(ledger) is None
    with pytest.raises(ProposalRefused, match="has expired"):
        Proposals(ledger).apply(version, actor="ben", replaced=True)
    _, version = _publish(ledger, RULES[:2])
    Proposals(ledger).dismiss(version, actor="ann", note="no")
    assert _told(ledger, "proposal_dismissed") == [("ann", f"{version}: no")]
    with pytest.raises(ProposalRefused, match="was dismissed by ann"):
        Proposals(ledger).apply(version, actor="ben", replaced=True)


def test_a_proposal_that_would_do_the_same_keeps_its_number(ledger: Ledger) -> None:
    _, version = _publish(ledger)
    more = [ProposedRule(fingerprint=r.fingerprint, task=r.task, note="more deaths") for r in reversed(RULES)]
    assert _publish(ledger, more, lasts_ms=2 * HOUR) == (Code.KEPT, version)
    told = _waiting(ledger)
    assert told is not None and told.rules[0].note == "more deaths" and told.until - told.at > 3600
    assert len(_told(ledger, "proposal_made")) == 1
    assert _publish(ledger, more[:2])[1] > version


def test_what_history_does_not_support_any_more_does_not_wait_any_more(ledger: Ledger) -> None:
    _, version = _publish(ledger)
    assert _publish(ledger, []) == (Code.DONE, 0)
    assert _waiting(ledger) is None
    with pytest.raises(ProposalRefused, match="not the newest any more; none waits"):
        Proposals(ledger).apply(version, actor="ann")


def test_what_a_person_said_no_to_is_remembered(ledger: Ledger) -> None:
    _, version = _publish(ledger, RULES[:1], POLICY)
    Proposals(ledger).dismiss(version, actor="ann")
    _, version = _publish(ledger, RULES[1:])
    Proposals(ledger).apply(version, actor="ann")
    Proposals(ledger).retract("ann")
    items = {rule.item for rule in RULES}
    assert Proposals(ledger).refused_items() == {
        *items,
        "policy:max_crashes=1",
        "policy:max_payload_bytes=100000000",
    }
    stored = json.loads(ledger.client.hget(ledger.keys.of("published"), "refused") or b"")  # type: ignore[arg-type]
    ledger.client.hset(ledger.keys.of("published"), "refused", json.dumps(dict.fromkeys(stored, 1)))
    assert Proposals(ledger).refused_items() == set(), "not for ever"


def test_a_persons_rule_and_policy_are_neither_replaced_nor_taken_back(ledger: Ledger) -> None:
    told = {"task": "shop.pdf", "actor": "eva", "note": "mine", "journalled": "mine"}
    ledger.rules.block(RuleKind.FINGERPRINT, RULES[0].fingerprint, lasts_ms=0, **told)
    _, version = _publish(ledger, policy=POLICY)
    assert Proposals(ledger).apply(version, actor="cron") == (2, 2)
    # Changed by a person after the pipeline did.
    ledger.rules.block(RuleKind.FINGERPRINT, RULES[1].fingerprint, lasts_ms=0, **told)
    ledger.rules.set("*", '{"max_crashes":3}', policies.version(ledger, ledger.keys.policy), "eva", "")
    assert Proposals(ledger).retract("ben") == (1, False)
    assert set(_in_force(ledger).values()) == {"eva"} and _every_task(ledger) == {"max_crashes": 3}


def test_the_policy_can_be_left_alone(ledger: Ledger) -> None:
    _, version = _publish(ledger, policy=POLICY)
    assert Proposals(ledger).apply(version, actor="ann", rules_only=True) == (3, 0)
    assert _every_task(ledger) is None


def test_several_proposals_are_taken_back_by_one_rollback(ledger: Ledger) -> None:
    for rules, policy in ((RULES[:1], {"max_crashes": 1}), (RULES[1:], {"max_failures": 2})):
        Proposals(ledger).apply(_publish(ledger, rules, policy)[1], actor="cron")
    assert len(_in_force(ledger)) == 3 and _every_task(ledger) == {"max_crashes": 1, "max_failures": 2}
    assert Proposals(ledger).retract("ben") == (3, True)
    assert _every_task(ledger) is None


def test_rules_hold_as_long_as_they_were_to_from_when_they_are_applied(ledger: Ledger) -> None:
    _, version = _publish(ledger, lasts_ms=HOUR)
    Proposals(ledger).apply(version, actor="ann")
    _, raw, now = policies.read(ledger, ledger.keys.blocks)
    ends = [rule.until or 0 for rule in read_rules(raw, now)[0].values()]
    assert all(3500 < end - now <= 3600 for end in ends)


def test_the_newest_ten_are_kept_and_what_nobody_understands_is_no_proposal(ledger: Ledger) -> None:
    key = ledger.keys.of("published")
    versions = [
        _publish(ledger, [ProposedRule(fingerprint=f"{n:016x}", task="t", note="")])[1] for n in range(13)
    ]
    names: Any = ledger.client.hkeys(key)
    kept = sorted(int(name[6:]) for name in names if name.startswith(b"sheet:"))
    assert kept == versions[-10:]
    for raw in ("{", "[]", "{}", "7", '{"until_ms": "x"}'):
        ledger.client.hset(key, mapping={f"sheet:{versions[-1]}": raw, "applied": raw, "refused": raw})
        assert _waiting(ledger) is None and Proposals(ledger).refused_items() == set()
        assert Proposals(ledger).retract("ben") == (0, False)
        with pytest.raises(ProposalRefused, match="there is no proposal"):
            Proposals(ledger).apply(versions[-1], actor="ann")
