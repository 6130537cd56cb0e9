"""Which messages a filter chooses, and that a mistake chooses none."""

from __future__ import annotations

import time
from typing import Any

import pytest

from celery_poison.desk.search import BadFilter, Filter
from celery_poison.model import MessageRecord


def record(**more: Any) -> MessageRecord:
    told: dict[str, Any] = {"id": "i", "mid": "m", "task": "shop.render", "queue": "celery", "state": "NDLV"}
    told.update(cause="signal:9", crashes=2, quarantined_at=time.time() - 3600, reason="it is too large")
    told["arguments"] = "('Invoice-4711',)"
    return MessageRecord(**told | more)


@pytest.mark.parametrize(
    "text",
    [
        "task=shop.render",
        "task=shop.*",
        "task=*.rende?",
        "task!=shop.mail",
        "cause=signal:*",
        "crashes=2",
        "crashes>=2",
        "crashes<=2",
        "crashes!=3",
        "crashes>1.5",
        "age>59m",
        "age<2h",
        "age<1d",
        "reason='*too large*'",
        'task=shop.render cause=signal:9 "reason=it is *"',
        "cause=sigkill",
        "cause!=SIGSEGV",
        "arguments=*4711*",
    ],
)
def test_what_matches(text: str) -> None:
    assert [*Filter.parse(text).choose([record()])]


@pytest.mark.parametrize(
    "text",
    [
        "task=shop.mail",
        "task=shop",
        "task=SHOP.render",
        "crashes>2",
        "crashes<2",
        "age>61m",
        "task=shop.render crashes=3",
    ],
)
def test_what_does_not(text: str) -> None:
    assert not [*Filter.parse(text).choose([record()])]


def test_of_many_those_that_match_are_chosen_in_their_order() -> None:
    many = [record(mid=f"m{n}", task=f"shop.t{n % 2}", crashes=n % 3) for n in range(12)]
    assert [found.mid for found in Filter.parse("task=shop.t1 crashes>1").choose(many)] == ["m5", "m11"]


def test_conditions_may_be_given_apart() -> None:
    assert [*Filter.parse("task=shop.*", "crashes=2").choose([record()])]
    assert not [*Filter.parse("task=shop.*", "crashes=3").choose([record()])]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty filter"),
        ("   ", "empty filter"),
        ("tusk=x", "did you mean task"),
        ("task", "no condition"),
        ("=x", "no condition"),
        ("task>x", "compare it with = or !="),
        ("crashes=two", "a number"),
        ("crashes!=nan", "a number"),
        ("crashes<inf", "a number"),
        ("age>3", "a number with s, m, h or d"),
        ("age>h", "a number with s, m, h or d"),
        ("reason='half", "quotation"),
    ],
)
def test_a_mistake_is_said_instead_of_choosing_everything(text: str, said: str) -> None:
    with pytest.raises(BadFilter, match=said):
        Filter.parse(text)


@pytest.mark.parametrize(
    "text", ["4711", "invoice", "SIGKILL render", "'too large'", "large cause=sigkill", "('in"]
)
def test_words_of_a_search_are_found_anywhere_in_a_record(text: str) -> None:
    assert [*Filter.search(text).choose([record()])]


@pytest.mark.parametrize("text", ["4712", "invoice mail", "4711 cause=oom", "sigsegv"])
def test_a_search_finds_only_what_has_all_of_its_words(text: str) -> None:
    assert not [*Filter.search(text).choose([record()])]


def test_words_alone_choose_nothing_where_nobody_looks_before_acting() -> None:
    with pytest.raises(BadFilter, match="no condition"):
        Filter.parse("4711")
    with pytest.raises(BadFilter, match="did you mean task"):
        Filter.search("tusk=x")


@pytest.mark.parametrize("text", ["task=" + "[" * 60_000, "a " * 5_000, "task=a " * 60])
def test_a_filter_that_is_too_long_is_refused(text: str) -> None:
    for read in (Filter.parse, Filter.search):
        with pytest.raises(BadFilter, match="are read at most"):
            read(text)


def test_conditions_that_are_given_apart_are_counted_together() -> None:
    with pytest.raises(BadFilter, match="60 words: 50 are read at most"):
        Filter.parse(*["task=a"] * 60)
