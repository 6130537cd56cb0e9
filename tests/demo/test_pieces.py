"""The demo's parts that need no fleet."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from click.testing import CliRunner

from celery_poison.demo import command, load
from celery_poison.demo.ink import Ink
from celery_poison.demo.poisons import POISONS
from celery_poison.demo.promises import Decision, Findings, judge
from celery_poison.demo.tasks import expected
from celery_poison.records import MessageRecord
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
    starts=dict.fromkeys(range(5), 1),
    kills=dict.fromkeys(NAMES, 2),
    quarantined={f"id-{name}": kept(name) for name in NAMES},
    candidates=(),
    poison_ids={name: f"id-{name}" for name in NAMES},
    released=Decision("segfault", accepted=True, came=True, told="'repaired'"),
    failed=Decision("sigkill", accepted=True, came=True, told="GivenUp"),
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
    "nobody heard of the failure": ({"failed": replace(GOOD.failed, came=False)}, "a message given up"),
}


def test_all_promises_hold_when_all_went_well() -> None:
    assert [promise.promise for promise in judge(GOOD) if not promise.held] == []


@pytest.mark.parametrize("changes, told", BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_noticed(changes: dict[str, object], told: str) -> None:
    broken = [promise.promise for promise in judge(replace(GOOD, **changes)) if not promise.held]
    assert any(promise.startswith(told) for promise in broken), broken


def test_a_seed_decides_the_order_and_everything_is_sent_once() -> None:
    order = load.plan(50, seed=1)
    assert order == load.plan(50, seed=1) != load.plan(50, seed=2)
    healthy = [item for item in order if isinstance(item, int)]
    assert healthy == list(range(50))
    assert {item.name for item in order if not isinstance(item, int)} == set(NAMES)
    assert len(order) == 50 + len(POISONS)


def test_a_stream_without_these_symbols_gets_others() -> None:
    line = (("✓", "good"), (" done", ""))
    assert Ink(io.TextIOWrapper(io.BytesIO(), "ascii")).render(line) == "+ done"
    assert Ink(io.TextIOWrapper(io.BytesIO(), "utf-8")).render(line) == "✓ done"


def test_a_line_is_cut_to_the_width() -> None:
    ink = Ink(io.TextIOWrapper(io.BytesIO(), "utf-8"))
    assert ink.render((("healthy", ""), (" and well", "")), 10) == "healthy a…"
    assert ink.render((("healthy", ""), (" and well", "")), 7) == "healthy"
    assert ink.render((("healthy", ""),), 10) == "healthy"


def test_without_a_redis_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find_redis_binary", lambda: None)
    result = CliRunner().invoke(command.demo, ["--json"])
    assert result.exit_code == 3
    assert "install Redis" in result.output


def test_the_help_shows_examples() -> None:
    result = CliRunner().invoke(command.demo, ["--help"])
    assert result.exit_code == 0
    assert "celery-poison demo --plain" in result.output
