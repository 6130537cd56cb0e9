"""An operator that dies at any one of its commands to Redis: no message is lost, and none is doubled."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import pytest

from celery_poison import Quarantine
from celery_poison.headers import EDITED, MID, RELEASE
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.fleet.forked import DIED, Forked

Prepare = Callable[[Quarantine, str], object]
Act = Callable[[Quarantine, str], object]


class Case(NamedTuple):
    """An act, where it finds its message, and where it may leave it."""

    prepare: Prepare
    act: Act
    before: set[str]
    after: set[str]
    commands: int


def _discard(quarantine: Quarantine, mid: str) -> None:
    assert quarantine.discard([mid])[0].done


CASES = {
    "release": Case(lambda q, m: None, lambda q, m: q.release([m]), {"NDLV"}, {"queued"}, 4),
    "edit": Case(lambda q, m: None, lambda q, m: q.edit(m, args=[2]), {"NDLV"}, {"FAIL", "copy queued"}, 8),
    "discard": Case(lambda q, m: None, lambda q, m: q.discard([m]), {"NDLV"}, {"FAIL"}, 3),
    "restore": Case(_discard, lambda q, m: q.restore([m]), {"FAIL"}, {"NDLV"}, 2),
    "purge": Case(_discard, lambda q, m: q.purge([m]), {"FAIL"}, set(), 2),
}
#: What may lie between the two, and how it goes on.
BETWEEN = {
    # The worker that receives the copy completes the release; the next operator's copy would void this one.
    "release": [{"NDLV", "queued"}],
    # The copy has taken the original's place and waits for its release, which is one as above.
    "edit": [{"FAIL", "copy NDLV"}, {"FAIL", "copy NDLV", "copy queued"}],
}


def _places(fleet: Fleet, keeper: Keeper, mid: str) -> set[str]:
    """Where a message and its changed copy are; more than one copy in a queue is an error."""
    found = []
    for state in ("NDLV", "FAIL"):
        for record in fleet.quarantine.list(state=state):
            if mid in (record.mid, record.edited_from):
                found.append(f"{'copy ' if record.mid != mid else ''}{state}")
    for raw in keeper.raw_on_redis():
        if mid in (raw["headers"][MID], raw["headers"].get(EDITED)):
            found.append(f"{'copy ' if EDITED in raw['headers'] else ''}queued")
    assert len(found) == len({*found}), found
    return {*found}


def _complete(fleet: Fleet, keeper: Keeper) -> None:
    """Do what a worker does with a released copy whose operator did not live to say so."""
    for raw in keeper.raw_on_redis():
        headers: dict[str, Any] = raw["headers"]
        kept = keeper.ledger.messages.look(headers[MID], headers["id"], 1000)
        if kept.kept == "NDLV":
            assert kept.release == headers[RELEASE], "else the worker would drop it as a copy"
            keeper.ledger.decisions.complete_release(headers[MID], headers["id"], headers[RELEASE])


@pytest.mark.parametrize("verb", CASES)
def test_SAP_7_an_operator_killed_at_any_command_leaves_each_message_exactly_once(
    verb: str, fleet: Fleet, keeper: Keeper
) -> None:
    case = CASES[verb]
    for number in count(1):
        mid = keeper.send_and_keep("fleet.healthy", 1)
        case.prepare(fleet.quarantine, mid)
        operator = Forked(lambda: case.act(Quarantine(fleet.app), mid), number)  # noqa: B023 - done before the next
        operator.wait()
        seen = _places(fleet, keeper, mid)
        assert seen in [case.before, case.after, *BETWEEN.get(verb, [])], f"killed before command {number}"
        _complete(fleet, keeper)
        left = _places(fleet, keeper, mid)
        assert len(left - {"FAIL"}) <= 1 and (left or verb == "purge"), f"killed before command {number}"
        keeper.empty()
        if operator.status != DIED:
            assert left == case.after
            break
    assert number > case.commands, "it was killed at every command"
