"""A program that only publishes hears of deaths and failovers where it asks for it (EMS-5)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_poison import install, signals
from celery_poison.errors import ConfigurationError
from celery_poison.ledger import Ledger, listening
from celery_poison.ledger.fleet import Silence
from celery_poison.plugin import plugin_of
from celery_poison.testing import RedisServer, wait_until
from tests import PATIENCE
from tests.apps.handlers import heard
from tests.apps.harness import ROOT
from tests.fleet.crew import Watched

OF_A_FAILOVER = ("monitor_changed", "worker_lost", "failover_started", "failover_finished")


@contextmanager
def _publishing(crew: Watched) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """A publishing process; gives what it has said so far."""
    path = crew.directory / "publisher.jsonl"
    with path.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fleet.publisher"],
            env=os.environ | crew.environ(),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=out,
        )
    try:
        yield lambda: _lines(path)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def _lines(path: Path) -> list[dict[str, Any]]:
    whole = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def test_EMS_5_a_publishing_process_hears_what_the_monitor_says_of_a_death_and_of_the_switch(
    new_crew: Callable[..., Watched], broker_url: str
) -> None:
    crew = new_crew(broker_url, poison_activation_interval=600.0)
    with crew.worker() as first:
        crew.await_that(lambda: heard(crew.marks, "monitor_changed"), "its monitor is active")
        with crew.worker("w2") as second, _publishing(crew) as said:
            second.wait_ready()

            def have_begun() -> bool:
                """Whether no more can begin in the first one: its two slots are taken, or all three run."""
                held = crew.held_by(first)
                return len(held) == 2 or (len(held) == 1 and len(held | crew.held_by(second)) == 3)

            crew.await_that(have_begun, "its tasks run")
            held = crew.held_by(first)
            first.kill_group()
            crew.await_that(lambda: said()[-1]["said"] == "failover_finished", "it has heard of all")
            crew.let_go()
            results = [AsyncResult(id, app=crew.app) for id in said()[0]["ids"]]
            crew.await_invariants(results, flagged=held & {entry["id"] for entry in crew.events("crashed")})
    _, *told, left = _lines(crew.directory / "publisher.jsonl")
    assert [line["said"] for line in told] == [*OF_A_FAILOVER], "each once, and none of what was before"
    assert {line["said"]: line["facts"] for line in told} == {
        name: heard(crew.marks, name)[-1] for name in OF_A_FAILOVER
    }
    assert not [name for name in left["threads"] if "listener" in name]


# --- in this process -------------------------------------------------------------------------------


@pytest.fixture
def told() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """What receivers in this process were given."""
    found: list[tuple[str, dict[str, Any]]] = []

    def hear(signal: Any, sender: Any = None, **facts: Any) -> None:
        found.append((signal.name, facts))

    for name in OF_A_FAILOVER:
        getattr(signals, name).connect(hear, weak=False)
    yield found
    for name in OF_A_FAILOVER:
        getattr(signals, name).disconnect(hear)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "LOOK_EVERY", 0.05)


def _dies(ledger: Ledger, incident: str, fence: int) -> None:
    worker = f"{incident}@h/b"
    ledger.fleet.beat(worker, {"node": f"{incident}@h"}, first=True)
    wait_until(
        lambda: ledger.fleet.declare_dead(worker, incident, Silence.SILENT, 1, fence), what="it is silent"
    )


def _recovered(ledger: Ledger, incident: str, fence: int) -> None:
    ledger.fleet.close_incident(
        f"{incident}@h/b", incident, flagged=1, put_back=2, returned={"q": 2}, fence=fence
    )


def _leads(ledger: Ledger, name: str) -> int:
    ledger.client.delete(ledger.keys.monitor)
    led = ledger.fleet.lead(name, 60_000)
    assert led is not None
    return led[0]


def _app(url: str) -> Celery:
    app = Celery("shop", broker=url, set_as_current=False)
    install(app)
    return app


@pytest.mark.usefixtures("quickly")
def test_EMS_5_a_redis_that_is_away_is_waited_for_and_nothing_of_meanwhile_is_missed_or_told_twice(
    new_server: Callable[..., RedisServer], told: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server(appendonly="yes", appendfsync="always")
    app = _app(server.url())
    ledger = plugin_of(app).open_ledger()
    fence = _leads(ledger, "m1@h/b")
    _dies(ledger, "before", fence)
    with signals.listen(app) as listener:
        wait_until(lambda: listener._until is not None, what="it has looked")
        server.kill()
        wait_until(lambda: "deaths and failovers are not signalled for now" in caplog.text, what="it notices")
        server.start()
        fence = _leads(ledger, "m2@h/b")
        _dies(ledger, "first", fence)
        wait_until(lambda: len(told) == 3, what="heard")
        _recovered(ledger, "before", fence)
        _dies(ledger, "second", fence)
        _recovered(ledger, "second", fence)
        _recovered(ledger, "first", fence)
        wait_until(lambda: len(told) == 7, what="heard too")
        looks = caplog.text.count("deaths and failovers are not signalled")
    assert looks == 1, "once, however often it asks"
    about = [(name, facts.get("incident", facts["worker"])) for name, facts in told]
    assert about[:3] == [
        ("monitor_changed", "m2@h/b"),
        ("worker_lost", "first"),
        ("failover_started", "first"),
    ]
    assert sorted(about[3:]) == [
        ("failover_finished", "first"),
        ("failover_finished", "second"),
        ("failover_started", "second"),
        ("worker_lost", "second"),
    ]
    assert told[1][1] == {"worker": "first@h/b", "incident": "first", "cause": "worker_lost", "how": "silent"}
    finished = next(facts for name, facts in told if name == "failover_finished")
    assert (finished["flagged"], finished["put_back"], finished["returned"]) == (1, 2, {"q": 2})
    assert not [thread for thread in threading.enumerate() if thread.name == "poison-listener"]


@pytest.mark.usefixtures("quickly")
def test_EMS_5_a_receiver_that_raises_or_stops_listening_stops_nothing_else(
    redis_url: str, told: list[Any]
) -> None:
    app = _app(redis_url)
    ledger = plugin_of(app).open_ledger()
    fence = _leads(ledger, "m1@h/b")

    def stops(**_: Any) -> None:
        listener.stop()
        raise LookupError("a receiver's own bug")

    signals.failover_finished.connect(stops)
    with signals.listen(app) as listener:
        wait_until(lambda: listener._until is not None, what="it has looked")
        _dies(ledger, "first", fence)
        _recovered(ledger, "first", fence)
        wait_until(lambda: len(told) == 3 and not listener._thread.is_alive(), what="told, and stopped")


def test_EMS_5_an_app_without_the_plugin_is_refused_with_the_cure() -> None:
    with pytest.raises(ConfigurationError, match=r"install\(app\) before"):
        signals.listen(Celery("bare", set_as_current=False))
