"""Too many workers die at once: nobody is convicted for it, everybody hears of it, and it passes (NEW-1)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from celery_poison.desk.survey import overview
from celery_poison.model import Start
from celery_poison.plugin import marking, plugin_of
from celery_poison.rules.doubts import PROOF, WHOLE
from celery_poison.testing import wait_until
from tests import sampled
from tests.fleet.crew import Watched
from tests.fleet.standalone import MonitorProcess

#: Seconds; short, since a test waits for its end, and longer than it takes to declare three workers dead.
WINDOW = 3.0


def _suspect(crew: Watched, n: int, *, doubted: bool) -> str:
    """Send a message that has died with others once, so that the next death may convict it.

    Args:
        doubted: workers ended while it was tried, so that it runs in an idle one, whose end would be proof.
    """
    ledger, id, mid = plugin_of(crew.app).open_ledger(), str(uuid4()), uuid4().hex
    start = Start("R", f"d.{id}", "w0@test/dead", 1, 1, 1, 0, id, "fleet.holds", "celery", 2, 5, 10, 1)
    ledger.messages.crash(mid, start, cause="worker_lost", shared=True)
    for _ in range(PROOF - 1 if doubted else 0):
        ledger.messages.claim(mid, b"", start)
        ledger.messages.interrupt(mid, start, cause="worker_lost", doubt=WHOLE, spoilt=True)
    with marking(id):
        crew.app.tasks["fleet.holds"].apply_async((n,), task_id=id)
    return id


def _busy(crew: Watched) -> set[str]:
    running = [start for _, start, _ in crew.quarantine.queries.running() if start.phase == "R"]
    return {start.worker.rpartition("/")[0] for start in running}


@pytest.mark.parametrize("trial", sampled(["cell"], ["off"]))
def test_NEW_1_half_of_a_fleet_killed_from_outside_convicts_nobody_and_the_alarm_passes(
    new_crew: Callable[..., Watched], redis_url: str, entry_points: Path, trial: str
) -> None:
    crew = new_crew(
        redis_url, poison_trial=trial, poison_fleet_gate_window=WINDOW, worker_prefetch_multiplier=1
    )
    suspects = {_suspect(crew, n, doubted=trial == "cell") for n in range(6)}
    with MonitorProcess(crew, entry_points) as monitor, ExitStack() as fleet:
        monitor.await_active()
        workers = [fleet.enter_context(crew.worker(f"w{n}", "solo", 1)) for n in range(6)]
        for worker in workers:
            worker.wait_ready()
        crew.await_that(lambda: len(_busy(crew)) >= 3, "three run one each, and nothing beside it")
        victims = sorted(_busy(crew))[:3]
        for worker in workers:
            if worker.hostname in victims:
                worker.kill_group()
        crew.await_that(lambda: crew.events("gate_closed"), "the gate is closed")
        seen = overview(crew.app)
        assert (seen.gate.closed, seen.gate.deaths, seen.gate.fleet) == (True, 3, 6)
        assert "the fleet gate is closed: 3 of 6 workers died" in seen.warnings[0]
        crew.let_go()
        crew.await_that(lambda: len(crew.events("cleared")) == 6, "everybody was tried, and has survived")
        assert {entry["id"] for entry in crew.events("cleared")} == suspects
        crew.await_that(lambda: crew.events("gate_lifted"), "it is over")
        assert not overview(crew.app).gate.closed
        wait_until(lambda: monitor.told("fleet_gate_lifted"), what=monitor.log_text)
        (told,) = monitor.told("fleet_gate_closed")
        assert (told["deaths"], told["fleet"]) == (3, 6)
    crashed = [entry["outcome"] for entry in crew.events("crashed")]
    assert crashed == ["shared"] * 9, "six on record from the start, three with their workers"
    assert not crew.quarantine.list() and not crew.quarantine.list(candidates=True)


@pytest.mark.parametrize(("trial", "pool", "deaths"), sampled([("cell", "prefork", 1)], [("off", "solo", 4)]))
def test_NEW_1_a_poison_is_convicted_while_the_gate_is_closed(
    new_crew: Callable[..., Watched], redis_url: str, trial: str, pool: str, deaths: int
) -> None:
    crew = new_crew(redis_url, poison_trial=trial)
    ledger = plugin_of(crew.app).open_ledger()
    ledger.client.hset(ledger.keys.gate, "until", 10**14)
    poison = crew.send("kill_main")
    with crew.supervise(1, pool, 2) as supervisor:
        crew.await_that(crew.quarantine.list, "convicted")
        assert len(supervisor.deaths) == deaths
    (kept,) = crew.quarantine.list()
    assert kept.id == poison.id


def test_NEW_1_workers_that_one_message_takes_along_one_after_the_other_are_no_outsiders_doing(
    new_crew: Callable[..., Watched], redis_url: str
) -> None:
    crew = new_crew(redis_url, poison_trial="off", poison_max_crashes=4)
    crew.send("kill_main")
    with crew.supervise(3, "solo", 1) as supervisor:
        crew.await_that(crew.quarantine.list, "convicted")
        assert len(supervisor.deaths) == 4
    assert not crew.events("gate_closed")
