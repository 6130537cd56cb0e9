"""Who wants to know of deaths, switches and decisions is told: by signals, and by events (EMS-5)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from celery_poison.extensions.outbox.desk import OutboxDesk
from celery_poison.plugin import plugin_of
from tests import PATIENCE
from tests.apps.events import Watcher
from tests.apps.handlers import SIGNALS, heard
from tests.apps.harness import ROOT
from tests.fleet.crew import Watched

OF_A_SWITCH = ("monitor_changed", "worker_lost", "failover_started", "failover_finished")


def test_EMS_5_a_death_and_the_switch_of_the_monitor_are_told_by_signals_and_by_events(
    new_crew: Callable[..., Watched], redis_url: str
) -> None:
    # Its silence tells nothing before the test is over: what tells is that its connections are gone.
    crew = new_crew(redis_url, poison_activation_interval=600.0)
    crew.hold(3)
    with Watcher(crew.app) as watcher, crew.worker(args=["-E"]) as first:
        crew.await_held(first, 2)
        crew.await_that(lambda: heard(crew.marks, "monitor_changed"), "its monitor is active")
        with crew.worker("w2", args=["-E"]) as second:
            second.wait_ready()
            crew.await_that(lambda: second.hostname in watcher.state.workers, "both send events")
            first.kill_group()
            crew.await_that(lambda: watcher.told("poison-failover-finished"), "the failover is over")
            crew.let_go()
            crew.await_that(lambda: not crew.left_behind(), "all done")
    signals = [heard(crew.marks, name)[-1] for name in OF_A_SWITCH]
    events = [watcher.told("poison-" + name.replace("_", "-"))[-1] for name in OF_A_SWITCH]
    for told, event in zip(signals, events, strict=True):
        assert event["hostname"] == second.hostname and "worker" not in event
        assert {name: event["incarnation" if name == "worker" else name] for name in told} == told
    changed, lost, started, finished = signals
    assert (changed["worker"].partition("/")[0], changed["fence"]) == (second.hostname, 2)
    assert lost["worker"].partition("/")[0] == first.hostname
    assert (lost["how"], lost["cause"]) == ("gone", "worker_lost")
    assert {told["incident"] for told in (lost, started, finished)} == {lost["incident"]}
    assert (finished["flagged"], finished["put_back"]) == (2, 3)
    assert len(heard(crew.marks, "message_candidate")) == 2
    assert set(watcher.state.workers) == {first.hostname, second.hostname}, "no phantom worker"


def _sent_by_this_version() -> set[str]:
    page = (ROOT / "docs" / "signals-events.md").read_text()
    return set(re.findall(r"^\| `(\w+)` \|[^|]*\| yes \|", page, re.MULTILINE))


@pytest.fixture
def here() -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Handlers in this process, and what they were given."""
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in SIGNALS}
    handlers = {name: partial(_hear, told[name]) for name in SIGNALS}
    for name, signal in SIGNALS.items():
        signal.connect(handlers[name], weak=False)
    yield told.__getitem__
    for name, signal in SIGNALS.items():
        signal.disconnect(handlers[name])


def _hear(told: list[dict[str, Any]], signal: Any = None, sender: Any = None, **arguments: Any) -> None:
    told.append(arguments)


def test_EMS_5_every_signal_that_is_said_to_be_sent_reaches_a_handler_with_its_arguments(
    new_crew: Callable[..., Watched], redis_url: str, here: Callable[[str], list[dict[str, Any]]]
) -> None:
    crew = new_crew(
        redis_url,
        poison_fleet_gate_workers=2,
        poison_fleet_gate_share=0.1,
        poison_fleet_gate_window=1.0,
        poison_notify="event",
        poison_suspend_after_failures=2,
        poison_suspend_for=0.1,
        poison_queues={"mails": {"max_messages": 5}},
    )
    ledger = plugin_of(crew.app).open_ledger()
    with crew.worker() as worker:
        worker.wait_ready()
        poisons = [crew.send("kill_child") for _ in range(2)]
        crew.await_that(lambda: len(crew.quarantine.list()) == 2, "both in quarantine")
        crew.await_that(lambda: heard(crew.marks, "group_quarantined"), "their group was told")
        crew.quarantine.fail([poisons[0].id], actor="ann", note="no use")
        crew.marks.repair()
        crew.quarantine.release([poisons[1].id], actor="ann", note="repaired")
        for n in range(2):  # nobody keeps them alive
            ledger.fleet.beat(f"gone{n}@test/b", {"node": f"gone{n}@test"}, first=True)
        crew.await_that(lambda: heard(crew.marks, "fleet_gate_lifted"), "closed, and lifted again")
        crew.await_that(lambda: heard(crew.marks, "endpoint_resumed"), "suspended, and resumed")
        outbox = OutboxDesk(plugin_of(crew.app))
        outbox.block("mails", actor="ann")
        outbox.unblock("mails", actor="ann")
        for number in range(5):
            crew.send("healthy", number, queue="mails")
        crew.await_that(lambda: len(heard(crew.marks, "failover_finished")) == 2, "both are recovered")
        assert poisons[1].get(timeout=PATIENCE) == "repaired"
    told = {name: heard(crew.marks, name) or here(name) for name in SIGNALS}
    assert {name for name, arguments in told.items() if arguments} == _sent_by_this_version()
    for name in _sent_by_this_version():
        assert set(told[name][0]) == SIGNALS[name].providing_args, name
    assert {told["message"]["id"] for told in here("message_failed")} == {poisons[0].id}
    assert {(told["actor"], told["note"]) for told in here("message_released")} == {("ann", "repaired")}
    assert {told["cause"] for told in heard(crew.marks, "message_quarantined")} == {"signal:9"}
    assert heard(crew.marks, "fleet_gate_closed")[0]["deaths"] == 2
