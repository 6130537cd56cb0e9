"""Look-ups and claims of many messages cost one round trip, and are what one after the other would be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_poison.errors import DecisionPending, LedgerUnavailable, MessageNotFound
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Start
from celery_poison.states import State

MANY = 100


def start_of(number: int, token: str = "") -> Start:
    token = token or f"0a1b.{number}"
    return Start("C", token, "w1@host/0a1b", 1, 0, 1, 0, f"id{number}", "shop.render", "q", 2, 5, 10, 1)


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    client = open_redis(redis_url)
    yield Ledger(client, Keys("ns"))
    client.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What goes to Redis, an element for each time that somebody sends and then waits."""
    packets: list[object] = []
    send = redis.Connection.send_packed_command

    def counted(self: redis.Connection, command: object, check_health: bool = True) -> None:
        packets.append(command)
        send(self, command, check_health)  # type: ignore[arg-type, no-untyped-call]

    monkeypatch.setattr(redis.Connection, "send_packed_command", counted)
    return packets


def test_a_hundred_look_ups_and_a_hundred_claims_are_a_round_trip_each(
    ledger: Ledger, sent: list[object]
) -> None:
    ledger.messages.claim("m", b"", None)
    ledger.messages.look("m", "id", 1000)  # both scripts are known to Redis by now
    del sent[:]
    assert ledger.messages.claim_many((f"m{n}", b"", start_of(n)) for n in range(MANY)) == [True] * MANY
    assert len(sent) == 1
    states = ledger.messages.look_many(((f"m{n}", f"id{n}") for n in range(MANY)), 1000)
    assert len(sent) == 2
    assert [state.start for state in states] == [start_of(n) for n in range(MANY)]


def test_scripts_that_redis_has_forgotten_are_loaded_again(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.client.script_flush()
        assert [state.start for state in ledger.messages.look_many([("m1", "id1"), ("m2", "id2")], 1000)] == [
            None,
            None,
        ]
        ledger.client.script_flush()
        assert all(ledger.messages.claim_many([("m1", b"", None), ("m2", b"", None)]))


def test_TP1_8_of_two_copies_that_are_claimed_together_one_gets_in(ledger: Ledger) -> None:
    claims = [("m", b"", start_of(1, "a.1")), ("m", b"", start_of(1, "a.2")), ("other", b"", start_of(2))]
    assert ledger.messages.claim_many(claims) == [True, False, True]
    assert {mid: start.token for mid, start, _ in ledger.read.running()} == {
        "m": "a.1",
        "other": "0a1b.2",
    }


def test_nobody_to_look_up_costs_nothing(ledger: Ledger) -> None:
    assert ledger.messages.look_many([], 1000) == [] and ledger.messages.claim_many([]) == []


def test_an_error_in_one_of_many_is_an_error(ledger: Ledger) -> None:
    ledger.client.set(ledger.keys.lineage("id2"), "no hash")
    with pytest.raises(LedgerUnavailable):
        ledger.messages.look_many([("m1", "id1"), ("m2", "id2")], 1000)


def test_NEW_6_many_decisions_are_one_round_trip_and_each_is_what_it_would_be_alone(
    ledger: Ledger, sent: list[object]
) -> None:
    for number in range(MANY):
        fields = {"body": b"b", "headers": "{}", "properties": "{}"}
        ledger.quarantine.store(f"m{number}", start_of(number), cause="oom", reason="death 2", fields=fields)
    ledger.decisions.decide("m7", "fail", "ada", "poison")
    mids = ["unknown", *(f"m{number}" for number in range(MANY))]
    ledger.client.script_flush()
    del sent[:]
    decided = ledger.decisions.decide_each(mids, "release", "grace", "try again")
    assert len(sent) == 3, "one that the script is missing, one that loads it, and one for all"
    assert [type(answer) for answer in decided] == [
        *(MessageNotFound, *[int] * 7, DecisionPending, *[int] * (MANY - 8)),
    ]
    assert "ada is deciding" in str(decided[8])
    del sent[:]
    releases = [(mid, f"id{mid[1:]}", 2 if mid == "m7" else 1) for mid in mids]
    refused = ledger.decisions.complete_releases(releases, "grace", "try again")
    assert len(sent) <= 3
    assert {mid for mid, error in zip(mids, refused, strict=True) if error is not None} == {"m7"}
    kept = ledger.read
    assert [record.mid for record in kept.kept(State.NDLV)] == ["m7"]
    assert [(e["mid"], e["actor"], e["note"]) for e in kept.journal() if e["event"] == "released"][-1] == (
        *("m99", "grace", "try again"),
    )
