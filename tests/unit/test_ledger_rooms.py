"""The rooms of transitions that make up the ledger: each stands on ``Caller`` alone."""

from __future__ import annotations

import ast
import inspect

import pytest

from celery_poison.ledger import Ledger
from celery_poison.ledger.scripts import Caller

ROOMS = Ledger.__bases__


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_a_room_of_the_ledger_calls_no_transition_of_another(room: type) -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(room)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    others = {
        name for other in ROOMS if other is not room for name in vars(other) if not name.startswith("__")
    }
    assert "call" in used, "the test reads the room"
    assert sorted(used & (others - set(vars(room)))) == []


def test_no_two_rooms_of_the_ledger_have_a_transition_of_one_name() -> None:
    names = [name for room in (*ROOMS, Caller) for name in vars(room) if not name.startswith("__")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
