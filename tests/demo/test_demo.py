"""The demo keeps its promises, and its manners."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_poison.demo.app import POISONS
from celery_poison.testing import wait_until
from tests import sampled
from tests.demo.demo_process import DemoProcess

HEALTHY = 60
Start = Callable[..., DemoProcess]


@pytest.fixture
def start_demo(redis_server: object, tmp_path: Path) -> Iterator[Start]:
    """A function that starts a demo; it is stopped after the test.

    `redis_server` is only asked for to skip, or to fail in CI, where there is no Redis.
    """
    started: list[DemoProcess] = []

    def start(*arguments: str, **options: Any) -> DemoProcess:
        demo = DemoProcess(*arguments, directory=tmp_path, **options)
        started.append(demo)
        return demo

    yield start
    for demo in started:
        demo.stop()


def test_SAP_3_SAP_7_every_promise_holds_and_the_summary_says_so(start_demo: Start) -> None:
    demo = start_demo("--json", "--healthy", str(HEALTHY), "--seed", "3")
    status, out, err = demo.finish()
    summary = json.loads(out)

    broken = [promise for promise in summary["promises"] if not promise["held"]]
    assert (status, broken) == (0, []), err
    assert summary["ok"] is True
    assert (summary["healthy"]["sent"], summary["healthy"]["done"]) == (HEALTHY, HEALTHY)
    assert summary["release"]["told"] == "'repaired'"
    assert summary["fail"]["told"] == "GivenUp"
    assert [poison["name"] for poison in summary["poison"]] == [poison.name for poison in POISONS]
    for poison in summary["poison"]:
        assert poison["cause"] in poison["expected"], poison
        assert 1 <= max(poison["crashes"], poison["failures"]) <= 2, poison
    _assert_fit_for_a_pipe(err)
    assert demo.leftovers() == []


@pytest.mark.matrix
def test_without_the_plugin_the_poison_kills_again_and_again_until_somebody_has_seen_enough(
    start_demo: Start,
) -> None:
    demo = start_demo("--plain", "--json", "--healthy", str(HEALTHY), "--seconds", "600")
    demo.await_line("kills again and again")
    demo.process.send_signal(signal.SIGINT)
    status, out, err = demo.finish()
    summary = json.loads(out)

    assert status == 128 + signal.SIGINT, err
    assert summary["mode"] == "plain"
    assert max(poison["kills"] for poison in summary["poison"]) > 2
    assert demo.leftovers() == []


def test_without_the_plugin_it_ends_by_itself_after_the_given_seconds(start_demo: Start) -> None:
    demo = start_demo("--plain", "--json", "-n", "5", "--seconds", "1")
    status, out, err = demo.finish()

    assert status == 0, err
    assert json.loads(out)["mode"] == "plain"


@pytest.mark.matrix
@pytest.mark.parametrize("number", sampled([signal.SIGTERM], [signal.SIGINT]), ids=lambda number: number.name)
def test_a_demo_that_is_stopped_leaves_nothing_behind(start_demo: Start, number: signal.Signals) -> None:
    demo = start_demo("--healthy", "2000")
    # The demo, two workers and their pools; Redis writes its title over the mark that is counted here.
    wait_until(lambda: len(demo.processes()) >= 7, what=lambda: f"processes {demo.processes()}")
    demo.process.send_signal(number)
    status, out, err = demo.finish()

    assert status == 128 + number, err
    assert "nothing is left behind" in out
    _assert_fit_for_a_pipe(out)
    assert demo.leftovers() == []


def test_a_broker_in_the_environment_is_not_touched(start_demo: Start) -> None:
    nowhere = "redis://127.0.0.1:1/0"
    demo = start_demo(
        "--plain",
        "--json",
        "-n",
        "5",
        "--seconds",
        "600",
        CELERY_BROKER_URL=nowhere,
        CELERY_RESULT_BACKEND=nowhere,
    )
    demo.await_line("healthy [1-5] of 5 done")


def test_a_terminal_is_redrawn_in_place_and_left_as_it_was(start_demo: Start) -> None:
    demo = start_demo("--plain", "-n", "5", "--seconds", "6", terminal=True, TERM="xterm", NO_COLOR="1")
    status, out, _ = demo.finish()

    assert status == 0, out
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert out.count(hidden) == out.count(shown) == 1
    assert out.index(hidden) < out.index(shown)
    assert re.search(r"\x1b\[\d+A", out), "the panel was never drawn over"
    assert not re.search(r"\x1b\[[\d;]*m", out), "NO_COLOR was set"


def _assert_fit_for_a_pipe(text: str) -> None:
    assert text.strip()
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text), repr(text)
