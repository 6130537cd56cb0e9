"""What the journal tells about a message beside its counts: equal to what rules go by, and no values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.message import Message

from celery_poison.keep.arguments import fingerprint_of
from celery_poison.worker.recorder import READABLE, UNKNOWN, Given, shape_of, traits_of
from tests.unit.test_fingerprint import JSON


def _traits(body: Any, content_type: str = "application/json", **headers: Any) -> Any:
    return traits_of(Given(body, content_type, headers), "t", b"s", asks_user=False)


@given(args=st.lists(JSON, max_size=3), kwargs=st.dictionaries(st.text(), JSON, max_size=3))
def test_the_fingerprint_is_the_one_that_block_rules_go_by(args: list[Any], kwargs: dict[str, Any]) -> None:
    body = json.dumps([args, kwargs, {}])
    message = Message(body=body, headers={}, content_type="application/json")
    assert _traits(body).fingerprint == fingerprint_of(message, "t", b"s")


def test_of_a_body_that_is_not_json_the_whole_counts_as_for_block_rules() -> None:
    body, kind = b"\x80\x02", "application/x-python-serialize"
    message = Message(body=body, headers={}, content_type=kind)
    assert _traits(body, kind) == (fingerprint_of(message, "t", b"s"), "")


@pytest.mark.parametrize(
    ("args", "kwargs", "shape"),
    [
        ([], {}, ""),
        ([1, "a"], {"page": "b"}, "int,str;page=str"),
        ([], {"b": None, "a": 1.5}, ";a=float,b=none"),
        ([True, [1], {"k": "v"}], {}, "bool,list,dict"),
        ([0] * 21, {}, ",".join(["int"] * 20) + ",..."),
        ([], {"jane@example.com": 1}, ";?=int"),
    ],
)
def test_the_shape_tells_types_and_names_and_no_value(args: Any, kwargs: Any, shape: str) -> None:
    assert shape_of((args, kwargs)) == shape


@given(args=st.lists(JSON, max_size=50), kwargs=st.dictionaries(st.text(), JSON, max_size=50))
def test_the_shape_is_short_whatever_somebody_sends(args: list[Any], kwargs: dict[str, Any]) -> None:
    assert len(shape_of((args, kwargs))) <= 203


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ("[[], {}, {}]" + " " * READABLE, {}),
        ("[[], {}, {}]", {"compression": "application/x-gzip"}),
        (([], {}, {}), {}),
    ],
)
def test_nothing_is_told_of_what_is_large_was_opened_or_decoded_before(body: Any, headers: Any) -> None:
    assert _traits(body, **headers) == UNKNOWN


@pytest.mark.parametrize("body", ["[" * 60000, '{"args": 1}', "7", "\ud800", "", b"\xff\xfe"])
def test_nothing_that_somebody_sends_makes_it_fail(body: Any) -> None:
    assert _traits(body).shape == ""


def test_a_function_of_the_user_is_not_run_for_the_journal() -> None:
    told = traits_of(Given("[[1], {}, {}]", "application/json", {}), "t", b"s", asks_user=True)
    assert told == ("", "int")


def test_without_the_ledgers_key_there_is_no_fingerprint() -> None:
    told = traits_of(Given("[[1], {}, {}]", "application/json", {}), "t", b"", asks_user=False)
    assert told == ("", "int")
