"""The demo's parts that need no fleet."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.text import Text

from celery_poison.cli.standalone import main
from celery_poison.demo.app import POISONS, expected
from celery_poison.demo.screen import Screen
from celery_poison.demo.stage import PoisonRow, StageSnapshot, plan
from celery_poison.demo.story import Decision, demo, judge
from celery_poison.model import MessageRecord
from celery_poison.testing import servers


def kept(name: str, **changes: object) -> MessageRecord:
    (cause, *_) = next(sorted(poison.causes) for poison in POISONS if poison.name == name)
    values = {"cause": cause, "crashes": 2, "strikes": 2} | changes
    return MessageRecord(
        id=f"id-{name}", mid=name, task=f"demo.{name}", queue="celery", state="NDLV", **values
    )


NAMES = [poison.name for poison in POISONS]
RESULTS = {n: expected(n) for n in range(5)}
RELEASED = Decision("segfault", held=True, told="'repaired'")
FAILED = Decision("sigkill", held=True, told="GivenUp")


def judged(
    rows: dict[str, dict[str, object]] | None = None,
    results: Mapping[int, object] = RESULTS,
    released: Decision | None = RELEASED,
    failed: Decision | None = FAILED,
    **more: object,
) -> list[str]:
    """What is broken at an end that is as it should be, but for these rows and other facts."""
    fine = {poison.name: PoisonRow(poison, 2, "quarantined", kept(poison.name)) for poison in POISONS}
    made = tuple(replace(row, **(rows or {}).get(name, {})) for name, row in fine.items())
    last = StageSnapshot(9.0, 5, 5, {"w1": True}, 1, 2, made, **more)
    return [promise.promise for promise in judge(last, results, released, failed) if not promise.held]


BROKEN = {
    "a result is missing": ({"results": {0: 0, 1: None}}, "every healthy task was done"),
    "a result is wrong": ({"results": {3: 8}}, "every healthy task was done"),
    "a poison is missing": ({"rows": {"hang": {"record": None}}}, "every poison is in quarantine"),
    "a cause is wrong": ({"rows": {"hang": {"record": kept("hang", cause="oom")}}}, "every poison"),
    "a healthy one is kept": ({"strangers": ("healthy",)}, "no healthy task"),
    "a candidate is left": ({"candidates": ("x",)}, "no suspicion"),
    "a third crash": ({"rows": {"bomb": {"record": kept("bomb", crashes=3)}}}, "no poison killed"),
    "a third kill that nobody counted": ({"rows": {"bomb": {"kills": 3}}}, "no poison killed"),
    "no release": ({"released": None}, "a released message"),
    "nobody heard of the failure": ({"failed": replace(FAILED, held=False)}, "a message given up"),
}


def test_all_promises_hold_when_all_went_well() -> None:
    assert judged() == []


@pytest.mark.parametrize("changes, told", BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_noticed(changes: dict[str, Any], told: str) -> None:
    (broken,) = judged(**changes)
    assert broken.startswith(told)


def test_a_seed_decides_the_order_and_everything_is_sent_once() -> None:
    order = plan(50, seed=1)
    assert order == plan(50, seed=1) != plan(50, seed=2)
    healthy = [item for item in order if isinstance(item, int)]
    assert healthy == list(range(50))
    assert {item.name for item in order if not isinstance(item, int)} == set(NAMES)
    assert len(order) == 50 + len(POISONS)


def test_a_stream_without_these_symbols_gets_others_and_no_colours() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "ascii")
    Screen(stream, guarded=True).say(Text.assemble(("✓", "green"), " done"))
    stream.flush()
    assert written.getvalue() == b"? done\n"


def test_without_rich_the_command_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.text", None)
    monkeypatch.delitem(sys.modules, "celery_poison.demo.story", raising=False)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "pip install 'celery-poison[demo]'" in result.output


def test_without_a_redis_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find_redis_binary", lambda: None)
    result = CliRunner().invoke(demo, ["--json"])
    assert result.exit_code == 3
    assert "install Redis" in result.output


def test_the_help_shows_examples() -> None:
    result = CliRunner().invoke(demo, ["--help"])
    assert result.exit_code == 0
    assert "celery-poison demo --plain" in result.output
