"""Export and import: a message goes into another environment byte for byte, once, and garbage does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from celery_poison import Quarantine
from celery_poison.errors import IllegalTransition
from tests.apps.harness import Fleet
from tests.desk.keeping import SECRET, Keeper
from tests.fleet.forked import DIED, Forked

Build = Callable[..., Any]


@pytest.fixture
def other(new_fleet: Build, redis_url: str) -> Fleet:
    """Another environment, with a ledger of its own."""
    return new_fleet(redis_url, poison_namespace="other")


def test_SAP_7_an_imported_message_is_the_exported_one_byte_for_byte_and_the_same_file_does_it_once(
    fleet: Fleet, keeper: Keeper, other: Fleet
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", "ü\x00", cause="oom", priority=3)
    lines = [*fleet.quarantine.export([mid])]
    for _ in range(2):
        (outcome,) = other.quarantine.import_(lines, actor="ann", note="to reproduce it")
        assert (outcome.done, outcome.mid) == (True, mid)
    assert outcome.error == "it is here, or was imported before"
    was, now = fleet.quarantine.get(mid), other.quarantine.get(mid)
    assert other.quarantine.message(mid) == fleet.quarantine.message(mid)
    same = ("id", "task", "queue", "cause", "crashes", "payload_bytes", "arguments", "first_seen", "evidence")
    assert [getattr(now, name) for name in same] == [getattr(was, name) for name in same]
    assert fleet.quarantine.get(mid) == was
    (entry,) = [entry for entry in other.quarantine.history(mid) if entry["event"] == "restored"]
    assert (entry["actor"], entry["note"]) == ("ann", "imported: to reproduce it")
    assert other.quarantine.release([mid])[0].done
    assert other.quarantine.import_(lines)[0].error, "released since, and not imported again"
    assert not other.quarantine.list()


def test_SAP_7_an_import_killed_at_any_command_and_typed_again_imports_each_message_once(
    fleet: Fleet, keeper: Keeper, other: Fleet
) -> None:
    mids = [keeper.send_and_keep("fleet.healthy", n) for n in range(2)]
    lines = [*fleet.quarantine.export(mids)]
    client = Keeper(other.app).ledger
    for number in count(1):
        operator = Forked(lambda: Quarantine(other.app).import_(lines), number)
        operator.wait()
        assert all(outcome.done for outcome in other.quarantine.import_(lines))
        assert {record.mid for record in other.quarantine.list()} == {*mids}
        assert len(other.events("restored")) == 2 * number
        other.quarantine.discard(mids)
        other.quarantine.purge(mids)
        client.client.delete(client.keys.imported)
        if operator.status != DIED:
            break
    assert number > 3, "it was killed at every command"


def test_what_is_not_in_quarantine_is_not_exported(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    fleet.quarantine.discard([mid])
    with pytest.raises(IllegalTransition, match="in state FAIL, not in quarantine"):
        next(fleet.quarantine.export([mid]))


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "it is no JSON": lambda line: "rubbish",
    "of another version": lambda line: {**line, "v": 2},
    "mid is missing": lambda line: {name: line[name] for name in line if name != "mid"},
    "queue is empty": lambda line: {**line, "queue": ""},
    "id is empty, longer": lambda line: {**line, "id": "\x1b[2J"},
    "crashes is no number": lambda line: {**line, "crashes": "many"},
    "task is no text": lambda line: {**line, "task": ["x"]},
    "headers is no JSON object": lambda line: {**line, "headers": "[]"},
    "evidence is none": lambda line: {**line, "evidence": '{"stack": 5}'},
    "its body is no base64": lambda line: {**line, "body_base64": "%%"},
    "it is no line of": lambda line: [line],
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_line_that_no_export_wrote_is_refused_in_a_sentence_and_the_others_are_imported(
    why: str, fleet: Fleet, keeper: Keeper, other: Fleet
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    (line,) = fleet.quarantine.export([mid])
    found = BROKEN[why](json.loads(line))
    broken = found if isinstance(found, str) else json.dumps(found)
    refused, imported = other.quarantine.import_([broken, line])
    assert not refused.done and refused.id == "line 1" and why in refused.error
    assert imported.done and [record.mid for record in other.quarantine.list()] == [mid]
    assert SECRET not in line.encode()
