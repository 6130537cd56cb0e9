"""Active and standby: who holds the lock acts, and nobody else (EMS-3, EMS-4)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_poison.cli.standby import StandaloneMonitor
from celery_poison.desk.read_model import ReadModel
from celery_poison.fleet import glances, monitor
from celery_poison.plugin import plugin_of
from celery_poison.testing import RedisServer, wait_until
from tests import PATIENCE
from tests.fleet.crew import Watched, frozen
from tests.fleet.standalone import MonitorProcess

ACTS = ("worker_lost", "failover_finished", "message_candidate")


@pytest.fixture
def new_monitor(entry_points: Path) -> Callable[..., MonitorProcess]:
    return lambda crew, name="monitor", *args: MonitorProcess(crew, entry_points, name, *args)


def _untold(crew: Watched) -> set[str]:
    """The tasks of which some worker shall tell Flower something."""
    ledger = plugin_of(crew.app).open_ledger()
    found: Any = ledger.client.hkeys(ledger.keys.untold)
    return {id.decode() for id in found}


def _holder(crew: Watched) -> str:
    return crew.quarantine.queries.monitor()


def _order(crew: Watched, *events: tuple[str, str]) -> list[int]:
    """Return the places in the journal of events, given as (kind, node)."""
    told = [(entry["event"], entry["worker"].rpartition("/")[0]) for entry in crew.events()]
    return [told.index(event) for event in events]


def test_EMS_4_a_revived_monitor_steps_down_without_acting_and_takes_over_when_it_is_its_turn(
    crew: Watched, new_monitor: Callable[..., MonitorProcess]
) -> None:
    with new_monitor(crew, "one") as old, new_monitor(crew, "another") as new:
        wait_until(lambda: old.told() or new.told(), what="one of them is active")
        if new.told():
            old, new = new, old
        results = crew.hold(3)
        with crew.worker() as first:
            held = crew.await_held(first, 2)
            with frozen(old.pid):
                first.kill_group()
                crew.await_events("failover_finished")
                assert _holder(crew) == new.name, "the lock of the stopped one ran out"
                acts = crew.events()
            _let_it_look_around(old)
        assert not old.told(*ACTS)
        assert _holder(crew) == new.name
        assert crew.events() == acts

        crew.let_go()
        new.end()  # before there is a worker, whose monitor might be faster
        wait_until(lambda: _holder(crew) == old.name, what="roles are reversed")
        with crew.worker("w2") as second:
            crew.await_invariants(results, flagged=held)
            second.kill_group()
            wait_until(lambda: old.told("failover_finished"), what=old.log_text)
    assert [entry["worker"] for entry in crew.events("monitor_changed")] == [old.name, new.name, old.name]
    fences = [int(entry["note"]) for entry in crew.events("monitor_changed")]
    assert fences == [1, 2, 3]


def _let_it_look_around(monitor: MonitorProcess) -> None:
    """Wait until a process that was stopped has had its say: it rests at least twice in each round."""

    def rests() -> int:
        lines = Path(f"/proc/{monitor.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("voluntary_ctxt_switches")))

    before = rests()
    wait_until(lambda: rests() > before + 10, what="the revived monitor looks around")


def test_EMS_4_the_active_monitors_own_death_is_noticed_by_the_next_one_and_not_by_its_lock_running_out(
    new_crew: Callable[..., Watched], broker_url: str
) -> None:
    crew = new_crew(broker_url, poison_activation_interval=600.0)
    results = crew.hold(4)
    with crew.worker() as first:
        held = crew.await_held(first, 2)
        crew.await_that(lambda: _holder(crew).startswith(first.hostname), "its monitor is active")
        with crew.worker("w2") as second:
            second.wait_ready()
            first.kill_group()
            crew.await_events("failover_finished")
            crew.let_go()
            crew.await_invariants(results, flagged=held)
    changed = ("monitor_changed", second.hostname)
    lost, finished = ("worker_lost", first.hostname), ("failover_finished", first.hostname)
    places = _order(crew, changed, lost, finished)
    assert places == sorted(places), crew.events()


@pytest.mark.matrix
def test_EMS_2_a_standby_hears_that_a_worker_has_ended_and_does_not_wait_for_its_next_round(
    new_crew: Callable[..., Watched], broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "STANDBY_PAUSE", 600.0)
    monkeypatch.setattr(monitor, "ACTIVE_PAUSE", 600.0)
    monkeypatch.setattr(glances, "STANDBY_GLANCE", 600.0)
    crew = new_crew(broker_url, poison_activation_interval=600.0)
    ledger, standby = plugin_of(crew.app).open_ledger(), StandaloneMonitor(crew.app)
    with crew.worker() as worker:
        crew.await_that(lambda: _holder(crew).startswith(worker.hostname), "its monitor is active")
        thread = threading.Thread(target=standby.run, daemon=True)
        thread.start()
        try:
            crew.await_that(lambda: ledger.client.pubsub_numsub(ledger.keys.news)[0][1] == 2, "both hear")
            worker.kill_group()
            crew.await_events("worker_lost")
            assert standby.is_active
        finally:
            standby.stop()
            standby._monitor.hurry()  # its pause is long here
            thread.join()


def test_EMS_9_a_monitor_that_takes_over_reads_the_policies_again_and_its_worker_acts_on_them(
    new_crew: Callable[..., Watched], broker_url: str
) -> None:
    # So seldom a heartbeat that none brings the new policy during this test.
    crew = new_crew(broker_url, poison_heartbeat_interval=300.0, poison_activation_interval=600.0)
    with crew.worker() as first:
        crew.await_that(lambda: _holder(crew).startswith(first.hostname), "its monitor is active")
        with crew.worker("w2") as second:
            second.wait_ready()
            crew.await_that(lambda: len(crew.quarantine.queries.workers(10)) == 2, "both are on record")
            version = crew.quarantine.set_policy("queue:celery", {"max_crashes": 1}).version
            in_force = f"policies of version {version} are in force"
            first.kill_group()
            crew.await_that(lambda: in_force in second.log_text(), "read at the switch")
            poison = crew.send("kill_child")
            crew.await_that(crew.quarantine.list, "in quarantine")
        assert in_force not in first.log_text()
    (kept,) = crew.quarantine.list()
    assert (kept.id, kept.crashes) == (poison.id, 1)


def test_EMS_3_a_standalone_monitor_puts_back_what_a_fleet_of_one_held_and_leaves_in_peace(
    crew: Watched, new_monitor: Callable[..., MonitorProcess]
) -> None:
    results = crew.hold(5)
    with new_monitor(crew, "monitor", "--metrics-port", "0") as monitor:
        monitor.await_active()
        with crew.worker() as only:
            held = crew.await_held(only, 2)
            only.kill_group()
            wait_until(lambda: monitor.told("failover_finished"), what=monitor.log_text)
        candidates = crew.quarantine.list(candidates=True)
        assert {record.id for record in candidates} == held
        assert crew.left_behind() == {"celery": 5, "candidates": 2}
        assert {line["message"]["id"] for line in monitor.told("message_candidate")} == held
        assert [line["how"] for line in monitor.told("worker_lost")] == ["gone"]
        wait_until(lambda: "celery_poison_up 1.0" in monitor.metrics, what=monitor.log_text)
        counts = ReadModel(crew.app).look().counts
        assert counts["crashed:worker_lost"] == 2
        assert sum(number for name, number in counts.items() if name.startswith("recovered:")) == 1
        assert monitor.end() == 0, monitor.log_text()
        assert _holder(crew) == ""
    assert _untold(crew) == held, "nobody is there to tell Flower"
    crew.let_go()
    with crew.worker("w2", args=["-E"]):
        crew.await_that(lambda: not _untold(crew), "a worker tells it")
        crew.await_invariants(results, flagged=held)


def test_EMS_3_a_standalone_monitor_that_finds_no_Redis_at_its_start_says_so_with_status_3(
    new_crew: Callable[..., Watched], new_monitor: Callable[..., MonitorProcess]
) -> None:
    with RedisServer() as server:
        url = server.url()
    with new_monitor(new_crew(url)) as monitor:
        assert monitor.wait() == 3
        assert "Redis is not reachable" in monitor.log_text()
        assert "Traceback" not in monitor.log_text()


def test_EMS_3_a_signal_stops_a_standalone_monitor_even_while_its_wake_up_is_locked(
    new_crew: Callable[..., Watched], broker_url: str
) -> None:
    """A handler runs in the thread that it has interrupted, which may hold that lock."""
    standby = StandaloneMonitor(new_crew(broker_url).app)
    with standby._monitor._wake._cond:  # type: ignore[attr-defined]
        handler = threading.Thread(target=standby.stop, daemon=True)
        handler.start()
        handler.join(PATIENCE)
        assert not handler.is_alive()
    standby.run()
