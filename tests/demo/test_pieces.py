"""The demo's parts that need no fleet."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.text import Text

from celery_poison.cli.standalone import main
from celery_poison.demo import command
from celery_poison.demo.app import POISONS, expected
from celery_poison.demo.screen import Screen
from celery_poison.demo.stage import plan
from celery_poison.demo.story import Decision, Findings, judge
from celery_poison.model import MessageRecord
from celery_poison.testing import servers


def kept(name: str, **changes: object) -> MessageRecord:
    (cause, *_) = next(sorted(poison.causes) for poison in POISONS if poison.name == name)
    values = {"cause": cause, "crashes": 2, "strikes": 2} | changes
    return MessageRecord(
        id=f"id-{name}", mid=name, task=f"demo.{name}", queue="celery", state="NDLV", **values
    )


NAMES = [poison.name for poison in POISONS]
GOOD = Findings(
    results={n: expected(n) for n in range(5)},
    kills=dict.fromkeys(NAMES, 2),
    quarantined={f"id-{name}": kept(name) for name in NAMES},
    candidates=(),
    poison_ids={name: f"id-{name}" for name in NAMES},
    released=Decision("segfault", held=True, told="'repaired'"),
    failed=Decision("sigkill", held=True, told="GivenUp"),
)
STRANGER = MessageRecord(id="healthy", mid="m", task="demo.healthy", queue="celery", state="NDLV")

BROKEN = {
    "a result is missing": ({"results": {0: 0, 1: None}}, "every healthy task was done"),
    "a result is wrong": ({"results": {3: 8}}, "every healthy task was done"),
    "a poison is missing": ({"quarantined": {}}, "every poison is in quarantine"),
    "a cause is wrong": (
        {"quarantined": GOOD.quarantined | {"id-hang": kept("hang", cause="oom")}},
        "every poison",
    ),
    "a healthy one is kept": ({"quarantined": GOOD.quarantined | {"healthy": STRANGER}}, "no healthy task"),
    "a candidate is left": ({"candidates": ("x",)}, "no suspicion"),
    "a third crash": (
        {"quarantined": GOOD.quarantined | {"id-bomb": kept("bomb", crashes=3)}},
        "no poison killed",
    ),
    "a third kill that nobody counted": ({"kills": {"bomb": 3}}, "no poison killed"),
    "no release": ({"released": None}, "a released message"),
    "nobody heard of the failure": ({"failed": replace(GOOD.failed, held=False)}, "a message given up"),
}


def test_all_promises_hold_when_all_went_well() -> None:
    assert [promise.promise for promise in judge(GOOD) if not promise.held] == []


@pytest.mark.parametrize("changes, told", BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_noticed(changes: dict[str, object], told: str) -> None:
    broken = [promise.promise for promise in judge(replace(GOOD, **changes)) if not promise.held]
    assert any(promise.startswith(told) for promise in broken), broken


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
    monkeypatch.delitem(sys.modules, "celery_poison.demo.command", raising=False)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "pip install 'celery-poison[demo]'" in result.output


def test_without_a_redis_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find_redis_binary", lambda: None)
    result = CliRunner().invoke(command.demo, ["--json"])
    assert result.exit_code == 3
    assert "install Redis" in result.output


def test_the_help_shows_examples() -> None:
    result = CliRunner().invoke(command.demo, ["--help"])
    assert result.exit_code == 0
    assert "celery-poison demo --plain" in result.output
