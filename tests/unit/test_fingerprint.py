"""Equal messages have equal fingerprints, whatever somebody sends (NEW-3)."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu.message import Message

from celery_poison.keep.arguments import Arguments, fingerprint_of, same_calls
from celery_poison.rules.blocks import Rule, RuleKind, read_rules
from celery_poison.worker.blocklist import Fingerprints
from tests import PATIENCE

_APP = Celery("fingerprints", set_as_current=False)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def _message(body: Any, content_type: str = "application/json", **headers: Any) -> Any:
    return Message(body=body, headers=headers, content_type=content_type)


def _of(*args: Any, task: str = "t", secret: bytes = b"s", embed: Any = None, **kwargs: Any) -> str:
    return fingerprint_of(_message(json.dumps([args, kwargs, embed or {}])), task, secret)


@given(args=st.lists(JSON, max_size=3), kwargs=st.dictionaries(st.text(), JSON, max_size=3))
def test_NEW_3_it_depends_on_task_arguments_and_key_and_on_nothing_else(
    args: list[Any], kwargs: dict[str, Any]
) -> None:
    one = fingerprint_of(_message(json.dumps([args, kwargs, {}])), "t", b"s")
    backwards = dict(reversed(kwargs.items()))
    other = json.dumps([args, backwards, {"chord": None}], indent=1).encode()
    assert fingerprint_of(_message(other, id="another"), "t", b"s") == one
    assert fingerprint_of(_message(json.dumps([args, kwargs, {}])), "u", b"s") != one
    assert fingerprint_of(_message(json.dumps([args, kwargs, {}])), "t", b"x") != one
    assert fingerprint_of(_message(json.dumps([[*args, 0], kwargs, {}])), "t", b"s") != one


def test_NEW_3_of_what_may_not_be_read_the_whole_body_counts() -> None:
    body = json.dumps([[1], {}, {}]).encode()
    plain = fingerprint_of(_message(body), "t", b"s")
    pickled = fingerprint_of(_message(body, "application/x-python-serialize"), "t", b"s")
    assert pickled != plain
    assert fingerprint_of(_message(body, "application/x-python-serialize"), "t", b"s", _never) == pickled


def _never(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("asked about arguments that nobody may read")


@given(st.binary() | st.text())
def test_NEW_3_no_body_is_too_strange_for_a_fingerprint(body: bytes | str) -> None:
    assert len(fingerprint_of(_message(body), "t", b"s")) == 16


@pytest.mark.parametrize("depth", [sys.getrecursionlimit() - 100, sys.getrecursionlimit() * 100])
def test_NEW_3_neither_is_one_that_is_nested_too_deep(depth: int) -> None:
    body = "[" + "[" * depth + "]" * depth + ", {}, {}]"
    assert len(fingerprint_of(_message(body), "t", b"s")) == 16


# --- a user's function -----------------------------------------------------------------------------------


def _fails(**kwargs: Any) -> Any:
    raise LookupError(kwargs)


FAILING: list[Callable[..., Any]] = [
    _fails,
    lambda **kwargs: sys.exit(3),
    lambda **kwargs: {1: "keys that", "a": "cannot be sorted"},
    lambda: None,
    lambda **kwargs: (_ for _ in ()).throw(TimeoutError),
]


@pytest.mark.parametrize("function", FAILING, ids=range(len(FAILING)))
def test_NEW_3_where_a_function_fails_all_arguments_count_and_the_failure_is_told(
    function: Callable[..., Any],
) -> None:
    told: list[Exception] = []
    message = _message(json.dumps([[], {"order": 7}, {}]))
    fingerprints = Fingerprints(_APP, told.append)
    assert fingerprints.of(message, "t", b"s", function) == _of(order=7)
    assert len(told) == 1 and "fingerprint function of t failed" in str(told[0])
    assert fingerprints.asks(message, "t", function), "it may fail on this message only"


def test_NEW_3_a_function_that_hangs_is_left_to_itself_and_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("celery_poison.worker.blocklist.PATIENCE", 0.05)
    told: list[Exception] = []
    go_on, calls, ended = threading.Event(), [], []

    def hangs(order: int) -> int:
        calls.append(order)
        go_on.wait(PATIENCE)
        ended.append(order)
        return order

    message = _message(json.dumps([[7], {}, {}]))
    fingerprints = Fingerprints(_APP, told.append)
    assert fingerprints.of(message, "t", b"s", hangs) == fingerprints.of(message, "t", b"s", hangs) == _of(7)
    assert not ended, "nobody waited for it"
    go_on.set()
    assert calls == [7] and len(told) == 1
    assert not fingerprints.asks(message, "t", hangs)


def test_NEW_3_messages_that_the_function_calls_equal_are() -> None:
    def order_of(order: int, **_: Any) -> int:
        return order

    fingerprints, message = Fingerprints(_APP, pytest.fail), _message(json.dumps([[7], {"try": 1}, {}]))
    again = _message(json.dumps([[7], {"try": 2}, {}]))
    assert fingerprints.of(message, "t", b"s", order_of) == fingerprints.of(again, "t", b"s", order_of)


# --- the list, as Redis keeps it ---------------------------------------------------------------------------


@given(st.dictionaries(st.text(), st.text() | st.binary() | JSON.map(json.dumps)))
def test_NEW_3_garbage_on_the_list_is_told_and_blocks_nothing(raw: dict[str, Any]) -> None:
    good = {"task:shop.convert": '{"actor": "ann", "until_ms": 9000, "tomorrows": 1}'}
    rules, complaints = read_rules({**raw, **good}, now=8.5)
    assert rules["task:shop.convert"] == Rule(
        kind=RuleKind.TASK, name="shop.convert", task="shop.convert", actor="ann", until=9.0
    )
    assert len(complaints) + len(rules) <= len(raw) + 1
    assert not read_rules(good, now=9.0)[0]


def _call(a: int, b: int = 2, *, c: str = "x") -> None: ...


def _any(a: int, *more: int, **named: int) -> None: ...


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (([1], {}), ([], {"a": 1})),
        (([1], {}), ([1, 2], {})),
        (([1], {}), ([1], {"b": 2, "c": "x"})),
        (([1, 3], {}), ([1], {"b": 3})),
        (([], {"c": "y", "a": 1}), ([1, 2], {"c": "y"})),
    ],
)
def test_NEW_3_a_call_in_other_words_is_the_same_call(one: Arguments, other: Arguments) -> None:
    assert other in [*same_calls(_call, one)] and one in [*same_calls(_call, other)]


@pytest.mark.parametrize("function", [_call, _any])
@pytest.mark.parametrize("call", [([], {}), ([1, 2, 3], {}), ([1], {"d": 4}), ([1], {"a": 1})])
def test_NEW_3_what_does_not_fit_or_has_no_name_is_written_in_one_way(
    function: Callable[..., None], call: Arguments
) -> None:
    assert [*same_calls(function, call)] == []


def test_NEW_3_true_is_not_one() -> None:
    assert ([1], {}) not in [*same_calls(lambda a, b=1: None, ([1, True], {}))]
