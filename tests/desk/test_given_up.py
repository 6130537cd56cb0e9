"""Restore and purge: a discard is taken back whole, and nothing is deleted that was not given up."""

from __future__ import annotations

from typing import Any

import pytest

from celery_poison import Quarantine
from celery_poison.desk.decisions import Outcome
from celery_poison.desk.reading import Detail
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper

#: What giving up and restoring change of a record.
_MOVED = {"quarantined_at", "last_seen"}


def refused(outcomes: list[Outcome]) -> str:
    (outcome,) = outcomes
    assert not outcome.done
    return outcome.error


def _told(fleet: Fleet, *names: str) -> list[tuple[str, ...]]:
    return [tuple(entry[name] for name in names) for entry in fleet.quarantine.queries.journal()]


def test_SAP_7_a_discarded_message_is_restored_with_everything_that_was_known_of_it(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    before = fleet.quarantine.get(mid).as_dict()
    original = fleet.quarantine.message(mid)
    fleet.quarantine.discard([mid], actor="ann", note="a mistake")

    (outcome,) = fleet.quarantine.restore([mid], actor="bob", note="we need it")

    assert outcome.done, outcome
    after = fleet.quarantine.get(mid).as_dict()
    assert {name for name, value in after.items() if value != before[name]} <= _MOVED
    assert fleet.quarantine.message(mid) == original
    assert not fleet.quarantine.list(state="FAIL")
    assert _told(fleet, "event", "state", "actor", "note")[-1] == ("restored", "NDLV", "bob", "we need it")
    assert fleet.quarantine.release([mid])[0].done
    assert len(keeper.raw_on_redis()) == 1


def test_restoring_twice_has_one_effect(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    fleet.quarantine.discard([mid])
    assert fleet.quarantine.restore([mid])[0].done
    journal = _told(fleet, "event")
    assert "is in quarantine" in refused(fleet.quarantine.restore([mid]))
    assert _told(fleet, "event") == journal


def test_a_failed_message_is_restored_only_by_force_since_its_caller_was_told(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    fleet.quarantine.fail([mid])
    assert "its caller has the failure" in refused(fleet.quarantine.restore([mid]))
    assert fleet.quarantine.get(mid).state == "FAIL"
    assert fleet.quarantine.restore([mid], force=True)[0].done
    assert fleet.quarantine.get(mid).state == "NDLV"


def test_of_two_who_restore_and_purge_at_once_one_is_refused_by_the_ledger_itself(
    fleet: Fleet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one acts between the look at the message and the step."""
    mid = keeper.send_and_keep("fleet.healthy", 1)
    fleet.quarantine.discard([mid])

    def restored_meanwhile(detail: Detail) -> None:
        assert Quarantine(fleet.app).restore([mid])[0].done

    error = refused(fleet.quarantine.purge([mid], before=restored_meanwhile))
    assert "state NDLV, which does not allow this" in error
    assert fleet.quarantine.message(mid).body


@pytest.mark.parametrize("verb", ["fail", "discard"])
def test_a_purged_message_is_gone_and_only_the_journal_remembers_it(
    verb: str, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    getattr(fleet.quarantine, verb)([mid])
    copies: list[Detail] = []
    (outcome,) = fleet.quarantine.purge([mid], actor="ann", note="old", before=copies.append)
    assert outcome.done, outcome
    (copy,) = copies
    assert copy.record.mid == mid and copy.stored is not None and copy.stored.body
    assert not fleet.quarantine.list(state="FAIL")
    assert fleet.quarantine.queries.message(mid) == {}
    detail = fleet.quarantine.detail(outcome.id)
    assert (detail.record.mid, detail.record.state, detail.stored) == (mid, "FAIL", None)
    assert _told(fleet, "event", "state", "actor", "note")[-1] == ("purged", "FAIL", "ann", "old")
    assert "no message" in refused(fleet.quarantine.purge([mid]))


#: Fields that a message hash has had from the beginning.
_FIRST_FIELDS = {
    *(
        "state",
        "id",
        "mid",
        "task",
        "queue",
        "cause",
        "reason",
        "deliveries",
        "crashes",
        "strikes",
        "failures",
    ),
    *("first_seen", "last_seen", "quarantined_at", "body", "content_type", "content_encoding", "headers"),
    *("properties", "resolution", "actor", "note"),
}


def test_a_message_that_an_older_version_gave_up_can_be_restored_edited_and_purged(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    fleet.quarantine.discard([mid])
    key = keeper.ledger.keys.message(mid)
    newer = {name.decode() for name in keeper.ledger.client.hkeys(key)} - _FIRST_FIELDS
    keeper.ledger.client.hdel(key, *newer)
    assert fleet.quarantine.restore([mid])[0].done
    assert fleet.quarantine.edit(mid, args=[2]).done
    assert fleet.quarantine.purge([mid])[0].done
    assert len(keeper.raw_on_redis()) == 1 and not fleet.quarantine.list(state="FAIL")


def test_what_is_in_quarantine_cannot_be_purged(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    assert "discard or fail it first" in refused(fleet.quarantine.purge([mid]))
    assert fleet.quarantine.get(mid).state == "NDLV"


def test_a_message_of_which_no_copy_could_be_kept_is_not_purged(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    fleet.quarantine.discard([mid])

    def full(detail: Any) -> None:
        raise OSError("no space left on device")

    assert "no space left" in refused(fleet.quarantine.purge([mid], before=full))
    assert fleet.quarantine.message(mid).body
