"""Conditions of holds by value, and the value that convicted messages share."""

from __future__ import annotations

import json
import math
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_poison.errors import ConfigurationError
from celery_poison.extensions.by_value.catching import Catching
from celery_poison.extensions.by_value.conditions import Check, Condition, call_of, parse_all
from celery_poison.extensions.by_value.proposing import Kept, propose
from celery_poison.extensions.by_value.signatures import Parameters, parameters_of

HOLDS = [
    ("n=42", 42),
    ("n=42", 42.0),
    ("n=42", "42"),
    ("n=-1", -1),
    ("n = 42", 42),
    ("n!=42", 41),
    ("n!=42", "x"),
    ("n<1e3", 999),
    ("n>=10", 10),
    ("n>5", 10**400),
    ("name='a and b'", "a and b"),
    ("name=a=b", "a=b"),
    ("name>2026-11-01", "2026-11-28"),
    ("n in 1, 42 ,x", "x"),
    ("n in 1,42", 42),
    ("n=true", True),
    ("n=null", None),
    ("n.id=42", {"id": 42}),
    ("n.a.b=x", {"a": {"b": "x"}}),
    ("n=3f2504e0-4f89-11d3-9a0c-0305e82c3301", uuid.UUID("3f2504e0-4f89-11d3-9a0c-0305e82c3301")),
]
DOES_NOT = [
    ("n=42", 41),
    ("n=42", None),
    ("n=1", True),
    ("n=42", [42]),
    ("n!=42", [42]),
    ("n<5", "4"),
    ("n<x", 4),
    ("n=nan", math.nan),
    ("n>1", math.nan),
    ("n.id=42", 42),
    ("n.id=42", {"ID": 42}),
    ("n='42'", 42),
]


@pytest.mark.parametrize(("text", "value"), HOLDS)
def test_NEW_27_a_condition_holds(text: str, value: Any) -> None:
    assert Condition.parse(text).holds(value)


@pytest.mark.parametrize(("text", "value"), DOES_NOT)
def test_NEW_27_a_condition_does_not_hold(text: str, value: Any) -> None:
    assert not Condition.parse(text).holds(value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("project_id", "'project_id' is no condition"),
        ("42=project_id", "is no condition"),
        ("n==42", "'n==42' compares by '=='"),
        ("n=>42", "compares by '=>'"),
        ("__import__('os').system('x')=1", "is no condition"),
        ("n in ,", "names no value"),
        ("n=" + "9" * 300, "is no condition"),
        ("", "is no condition"),
        ("n=1 and", "is no condition"),
        ("a=1 and " + " " * 1600 + "b=1", "conditions of 1611 characters: 1600 are allowed"),
        ("a=1 and " * 8 + "a=1", "a hold of 9 conditions: 8 are allowed"),
    ],
)
def test_NEW_27_a_misspelt_condition_is_one_sentence_that_names_what_was_typed(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_all(text)
    assert named in str(refused.value) and "\n" not in str(refused.value)


def test_NEW_27_several_conditions_are_joined_by_and_and_by_repetition() -> None:
    assert parse_all("a=1 and b='x and y'") == ("a=1", "b='x and y'") == parse_all(["a=1", "b='x and y'"])


def _check(text: str, parameters: Parameters) -> Check | None:
    return Check.of(1, map(Condition.parse, parse_all(text)), parameters)


def test_NEW_27_arguments_are_bound_to_the_signature_of_the_task() -> None:
    app = Celery("shop", set_as_current=False)

    @app.task(name="shop.charge", bind=True, shared=False)
    def charge(self: Any, order: int, page: int = 1, *, fast: bool = False) -> None: ...

    @app.task(name="shop.open", shared=False)
    def any_of(*rows: int, **more: Any) -> None: ...

    known, opened = parameters_of(app, "shop.charge"), parameters_of(app, "shop.open")
    order, both, fast = (_check(text, known) for text in ("order=7", "order=7 and page=1", "fast=true"))
    assert order and both and fast
    for call in (([7], {}), ([], {"order": 7}), ([7, 1], {}), ([7], {"page": 1})):
        assert order.holds(*call) and both.holds(*call) and not fast.holds(*call)
    assert not both.holds([7, 2], {}) and fast.holds([], {"fast": True}) and not order.holds([], {})
    assert _check("project_id=1", known) is None, "none of its calls can fall under it: nothing is asked"
    assert (found := _check("project_id=1", opened)) and found.holds([1], {"project_id": 1})
    assert not found.holds([1], {}) and _check("x=1", parameters_of(app, "unknown"))


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    value=_ANY, compared=st.sampled_from(["=", "!=", "<", "<=", ">", ">=", " in "]), typed=st.text(max_size=9)
)
def test_NEW_27_whatever_a_publisher_sends_is_compared_and_no_more(
    value: Any, compared: str, typed: str
) -> None:
    try:
        condition = Condition.parse(f"n{compared}{typed}")
    except ConfigurationError:
        return
    assert condition.holds(value) in (True, False)
    condition.holds({"n": value})


@pytest.mark.parametrize("payload", [None, 1, "x", [], [1], [1, 2], [[], []], {}, {"args": 1, "kwargs": {}}])
def test_NEW_27_a_body_without_arguments_is_none(payload: Any) -> None:
    assert call_of(payload) is None


def test_NEW_27_both_protocols_hold_arguments() -> None:
    assert call_of([[1], {"a": 2}, {}]) == ([1], {"a": 2}) == call_of({"args": [1], "kwargs": {"a": 2}})
    assert call_of(json.loads("[[" + "[" * 500 + "]" * 500 + "], {}, {}]"))


def test_NEW_27_what_was_held_against_older_holds_is_held_against_a_newer_one_once_more() -> None:
    """The background thread takes a hold over while the event loop looks at a message."""

    def checks(task: str) -> tuple[Check, ...]:
        catching.version += 1
        return ()

    catching = object.__new__(Catching)
    vars(catching).update(version=1, _looks=0, _nanoseconds=0, _let_go=0, _in_force={}, _checks_of=checks)
    message = SimpleNamespace(content_type="application/json", headers={}, payload=[[], {}, {}])
    assert catching.catch(message, "t") is None and message.held_against == 1


# --- what is proposed ------------------------------------------------------------------------------------


def _convicted(number: int, **given: Any) -> Kept:
    return Kept(True, f"f{number}", given)


def test_NEW_27_three_convicted_messages_that_share_a_value_make_a_proposal() -> None:
    kept = [_convicted(n, project_id=42, file=f"{n}.png") for n in range(3)]
    assert (found := propose(kept)) and found == (("project_id=42",), 3)
    assert propose(kept[:2]) is None, "two may do so by chance"
    assert propose([*kept, Kept(False, "x", {"project_id": 42})]) is None, "others have it, too"
    assert propose([*kept, Kept(False, "x", {"project_id": 7})]) == found
    assert propose([_convicted(1, project_id=42)] * 3) is None, "one poison, sent three times: block it"


def test_NEW_27_values_that_the_same_messages_share_stand_side_by_side() -> None:
    kept = [_convicted(n, project_id=42, kind="png", file=n) for n in range(4)]
    assert (found := propose(kept)) and found.where == ("kind=png", "project_id=42")


@pytest.mark.parametrize(
    "value",
    [
        True,
        None,
        "",
        "x" * 61,
        "a\nb",
        "it's",
        1e400,
        [1],
        {"a": 1},
        10**30,
        "a and b=1",
        "1 and given=1",
        " x",
        "=1",
    ],
)
def test_NEW_27_no_value_is_proposed_that_could_not_be_typed(value: Any) -> None:
    found = propose([_convicted(n, given=value) for n in range(3)])
    assert found is None or (Condition.parse(found.where[0]).holds(value) and "\n" not in found.where[0])
    assert found is None or parse_all(found.where[0]) == found.where, "one condition, typed or clicked"
