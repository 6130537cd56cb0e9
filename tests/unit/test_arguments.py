"""The short line of arguments, and that what is to be hidden is hidden at any depth."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery

from celery_poison.keep.arguments import HIDDEN, arguments, changes, redacted
from celery_poison.model import StoredMessage

EMBED = {"chain": [{"task": "t", "args": ["x"], "kwargs": {"password": "x"}}], "chord": None}


@pytest.fixture(scope="module")
def app() -> Celery:
    app = Celery("shop", broker="memory://")

    @app.task(bind=True, shared=False, name="shop.charge")
    def charge(self: Any, order: int, card: str, *rest: str) -> None: ...

    app.finalize()
    return app


def _stored(body: Any, content_type: str = "application/json", **headers: Any) -> StoredMessage:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return StoredMessage(body=raw, content_type=content_type, content_encoding="utf-8", headers=headers)


def _shown(app: Celery, body: Any, redact: Any = (), **options: Any) -> str:
    return arguments(app, redact, "shop.charge", _stored(body, **options))


def test_a_call_is_told_as_it_is_written(app: Celery) -> None:
    assert _shown(app, [[42, "a.png", None], {"size": 1.5}, {}]) == '42, "a.png", null, size=1.5'
    assert _shown(app, {"args": [1], "kwargs": {"b": 2}}) == "1, b=2"
    assert _shown(app, [[], {}, EMBED]) == "no arguments"


def _changes(app: Celery, old: Any, new: Any, redact: Any = (), **headers: Any) -> list[tuple[str, str, str]]:
    return [*changes(app, redact, "shop.charge", headers, old, new)]


def test_NEW_6_a_change_is_told_by_the_names_of_parameters_and_no_hidden_value_is(app: Celery) -> None:
    old, new = [[1, "a", "x", "y"], {}, {}], [[2, "a", "x", "z"], {"tip": None}, {}]
    assert _changes(app, old, new) == [("order", "1", "2"), ("rest[3]", '"y"', '"z"'), ("tip", "-", "null")]
    assert _changes(app, old, new, ["order"])[0] == ("order", '"(hidden)"', '"(hidden)" (another)')
    by_producer = {text for _, *both in _changes(app, old, new, argsrepr="(***)") for text in both}
    assert by_producer == {'"(hidden)"', '"(hidden)" (another)', "-"}
    rows = [*range(9000)]
    ((_, before, after),) = _changes(app, [[rows], {}, {}], [[rows[:2000]], {}, {}])
    assert before.endswith("… (52,890 bytes)") and after.endswith("… (10,890 bytes)")
    assert not _changes(app, old, old)


def test_long_values_and_long_lines_are_cut(app: Celery) -> None:
    told = _shown(app, [["x" * 1000], {}, {}])
    assert len(told) == 80 and told.endswith("…")
    assert len(_shown(app, [["x" * 30] * 9, {}, {}])) == 200


@pytest.mark.parametrize("body", [b"\x80\x04", b"{", b"5", b'"ab"', b"[1, 2]", b"[" * 100_000, b"null"])
def test_what_is_no_call_has_no_arguments(app: Celery, body: bytes) -> None:
    assert _shown(app, body) == ""
    assert _shown(app, body, content_type="application/x-python-serialize") == ""


def test_text_that_redis_would_not_take_is_made_harmless(app: Celery) -> None:
    assert _shown(app, b'[["\\ud800"], {}, {}]').encode() == b'"?"'


def test_named_arguments_keys_within_and_positional_ones_by_their_parameters_are_hidden(app: Celery) -> None:
    body = [[42, {"a": [{"Api_Key": "x"}]}, "y"], {"password": "z"}, EMBED]
    redact = ["*PASSWORD*", "api_?ey", "rest"]
    shown = redacted(app, redact, "shop.charge", body)
    assert shown[:2] == [[42, {"a": [{"Api_Key": HIDDEN}]}, HIDDEN], {"password": HIDDEN}]
    assert shown[2]["chain"][0] == {"task": "t", "args": ["x"], "kwargs": {"password": HIDDEN}}
    assert _shown(app, body, ["card"]).startswith('42, "(hidden)", "y", password="z"')
    many = _shown(app, [[1, 2, "r", "s", "t"], {}, {}], ["rest"])
    assert many == '1, 2, "(hidden)", "(hidden)", "(hidden)"'


def test_true_hides_all_and_nothing_hides_none(app: Celery) -> None:
    body = [[1, "x"], {"b": 2}, EMBED]
    assert _shown(app, body, True) == '"(hidden)", "(hidden)", b="(hidden)"'
    assert redacted(app, True, "shop.charge", body)[2]["chain"][0]["args"] == HIDDEN
    assert redacted(app, [], "shop.charge", body) is body
    assert redacted(app, True, "shop.charge", {"secret": 1}) == HIDDEN


def test_NEW_5_of_a_task_that_nobody_knows_here_positional_arguments_are_hidden_where_anything_is(
    app: Celery,
) -> None:
    body = _stored([[42, "4711"], {"card": "4711", "size": 1}, {}])
    assert arguments(app, ["card"], "shop.gone", body) == f'"{HIDDEN}", "{HIDDEN}", card="{HIDDEN}", size=1'
    assert arguments(app, [], "shop.gone", body) == '42, "4711", card="4711", size=1'


def test_what_a_producer_says_instead_of_the_arguments_is_shown_instead(app: Celery) -> None:
    body = [[[1, 2], "4111 1111"], {"note": "x"}, {}]
    honest = {"argsrepr": "((1, 2), '4111 1111')", "kwargsrepr": "{'note': 'x'}"}
    assert _shown(app, body, **honest) == '[1, 2], "4111 1111", note="x"'
    masked = {**honest, "argsrepr": "((1, 2), '**** 1111')"}
    assert _shown(app, body, **masked) == "((1, 2), '**** 1111') {'note': 'x'}"
    assert _shown(app, body, argsrepr="hidden", kwargsrepr="{}") == "hidden"
    assert _shown(app, body, ["note"], **masked) == HIDDEN
