"""The parts that make up the ledger: each knows the scripts that all share, and no other part."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Any

import fakeredis
import pytest

from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.scripts import LedgerPart

LEDGER = Ledger(fakeredis.FakeRedis(), Keys())
PARTS = {name: part for name, part in vars(LEDGER).items() if isinstance(part, LedgerPart)}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_ledger_reaches_no_other_part(name: str) -> None:
    part: Any = PARTS[name]
    assert vars(part) == {"_scripts": LEDGER.scripts}, "it holds the scripts alone"
    names = {node.id for node in ast.walk(_code_of(type(part))) if isinstance(node, ast.Name)}
    others = {type(other).__name__ for other in PARTS.values()} - {type(part).__name__}
    assert not names & {*others, "Ledger"}
    attributes = {node.attr for node in ast.walk(_code_of(type(part))) if isinstance(node, ast.Attribute)}
    assert "_scripts" in attributes, "the test reads the part"


@pytest.mark.parametrize("name", PARTS)
def test_every_method_that_a_part_calls_of_itself_is_its_own(name: str) -> None:
    kind = type(PARTS[name])
    used = {
        node.attr
        for node in ast.walk(_code_of(kind))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    assert sorted(used - {*vars(kind), *vars(LedgerPart), "_scripts"}) == []


def test_the_ledger_is_its_parts_and_has_no_transition_of_its_own() -> None:
    own = {name for name, value in vars(Ledger).items() if inspect.isfunction(value)}
    assert own == {"__init__", "companion", "disconnect"}
    rooms = [sys.modules[module] for module in {type(part).__module__ for part in PARTS.values()}]
    kinds = {kind for room in rooms for _, kind in inspect.getmembers(room, inspect.isclass)}
    every = {kind for kind in kinds if issubclass(kind, LedgerPart) and kind is not LedgerPart}
    assert every == {type(part) for part in PARTS.values()}


def _code_of(kind: type) -> ast.Module:
    return ast.parse(inspect.getsource(kind))
