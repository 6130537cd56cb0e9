"""A task that must not run twice never does by itself, whatever it dies of (NEW-16)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from celery_poison.model import MessageRecord
from celery_poison.testing import RedisServer
from tests import PATIENCE, sampled
from tests.broker.neighbour import PlainNeighbour, eager
from tests.worker.conftest import Crew
from tests.worker.test_nobody_is_to_blame import _cut_broker_connections as cut_broker_connections

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
REDIS_FIRST = pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
PREFORK_AND_THREADS = pytest.mark.parametrize(
    ("broker_url", "pool"),
    sampled(
        [("redis", "prefork"), ("rabbitmq", "threads")],
        [("redis", "threads"), ("rabbitmq", "prefork"), ("redis", "gevent"), ("rabbitmq", "gevent")],
    ),
    indirect=["broker_url"],
)


def _begun(crew: Crew, count: int = 1) -> None:
    crew.await_that(lambda: crew.starts("mails") >= count, f"{count} mails begun")


def _kept(crew: Crew, count: int = 1) -> list[MessageRecord]:
    """Return what is in quarantine, once everything else has ended; nothing has run twice."""
    crew.await_that(lambda: len(crew.quarantine.list()) == count, f"{count} in quarantine")
    crew.await_that(crew.nothing_runs, "nothing runs")
    starts = [mark.id for mark in crew.marks.all("mails", "start")]
    assert len(starts) == len(set(starts)), f"run twice\n{crew.evidence()}"
    kept = crew.quarantine.list()
    assert all(record.not_rerun for record in kept)
    assert all("rerun=False" in record.reason for record in kept if record.strikes < 2), kept
    return kept


@PREFORK_AND_THREADS
def test_NEW_16_what_ran_when_its_worker_was_killed_is_kept_and_what_was_prefetched_goes_on(
    crew: Crew, pool: str
) -> None:
    for _ in range(6):
        crew.send("mails", "waits")
    with crew.worker(pool=pool) as first:
        _begun(crew, 2)
        crew.await_that(lambda: len([*crew.quarantine.queries.running()]) == 2, "on record")
        began = {mark.id for mark in crew.marks.all("mails", "start")}
        first.kill_group()
        first.wait()
    crew.marks.repair()
    with crew.worker("w2", pool=pool):
        kept = _kept(crew, 2)
        crew.await_that(lambda: len(crew.marks.all("mails", "end")) == 4, "the others are sent")
    assert {record.id for record in kept} == began
    assert {record.cause for record in kept} == {"worker_lost"}
    assert {entry["outcome"] for entry in crew.events("quarantined")} == {"not_rerun"}


@BOTH
@pytest.mark.parametrize(
    ("how", "cause"),
    sampled(
        [("dies", "signal:9"), ("takes its worker along", "worker_lost")], [("is asked to end", "signal:15")]
    ),
)
def test_NEW_16_its_first_death_sends_it_to_quarantine_with_its_cause(
    crew: Crew, how: str, cause: str
) -> None:
    result = crew.send("mails", how)
    with crew.supervise():
        (kept,) = _kept(crew)
    assert (kept.id, kept.cause, kept.not_rerun) == (result.id, cause, True)
    assert len(crew.events("crashed", "interrupted")) == 1


@REDIS_FIRST
def test_NEW_16_a_hard_time_limit_loses_nothing_and_tells_its_caller_as_ever(crew: Crew) -> None:
    result = crew.send("mails", "hangs", time_limit=1)
    with crew.worker():
        (kept,) = _kept(crew)
        crew.await_that(result.ready, "its caller was told")
    assert (kept.cause, result.state) == ("time_limit", "FAILURE")


@BOTH
def test_NEW_16_a_shutdown_that_cuts_it_off_sends_it_to_quarantine(crew: Crew) -> None:
    crew.send("mails", "waits")
    with crew.worker() as first:
        _begun(crew)
        first.quit()
        first.wait()
    with crew.worker("w2"):
        (kept,) = _kept(crew)
    assert kept.cause in ("shutdown", "unknown")  # the latter where its connection was closed first


@PREFORK_AND_THREADS
def test_NEW_16_a_worker_that_freezes_while_it_runs_sends_it_to_quarantine(crew: Crew, pool: str) -> None:
    crew.send("mails", "waits")
    with crew.worker(pool=pool) as first:
        _begun(crew)
        pids = [first.main_pid, *first.session_pids()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        with crew.worker("w2", pool=pool):
            crew.await_that(lambda: crew.events("worker_lost"), "taken for dead")
            if crew.broker_url.startswith("amqp"):  # which delivers it again when the connection ends
                first.kill_group()
            (kept,) = _kept(crew)
        for pid in pids:
            _go_on(pid)
    assert kept.cause == "frozen"


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@REDIS_FIRST
def test_NEW_16_what_the_task_itself_asks_for_is_no_rerun(crew: Crew) -> None:
    results = [crew.send("mails", how) for how in ("retries", "puts itself back")]
    with crew.worker():
        assert [result.get(timeout=PATIENCE) for result in results] == ["sent", "sent"]
        crew.await_that(crew.nothing_runs, "forgotten")
    assert not crew.quarantine.list()
    assert crew.starts("mails") == 4


@REDIS_FIRST
@pytest.mark.parametrize("trial", sampled(["off"], ["queue"]))
def test_NEW_16_it_is_never_tried_whatever_trials_there_are(
    new_crew: Callable[..., Crew], broker_url: str, trial: str
) -> None:
    crew = new_crew(broker_url, poison_trial=trial)
    crew.send("mails", "takes its worker along")
    with crew.supervise():
        (kept,) = _kept(crew)
    assert kept.strikes == 1


@REDIS_FIRST
def test_NEW_16_a_release_asks_and_runs_it_once_more(crew: Crew) -> None:
    result = crew.send("mails", "dies")
    with crew.worker():
        (kept,) = _kept(crew)
        for act in (
            lambda: crew.quarantine.release([kept.mid])[0],
            lambda: crew.quarantine.schedule([kept.mid], after=1)[0],
            lambda: crew.quarantine.edit(kept.mid, args=["repaired"]),
        ):
            outcome = act()
            assert not outcome.done
            assert "--yes-run-again" in outcome.error
        crew.marks.repair()
        (released,) = crew.quarantine.release([kept.mid], yes_run_again=True)
        assert released.done
        assert result.get(timeout=PATIENCE) == "sent"
        crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.starts("mails") == 2


def test_NEW_16_a_release_that_dies_again_comes_back_and_asks_again(crew: Crew) -> None:
    crew.send("mails", "takes its worker along")
    with crew.supervise():
        (kept,) = _kept(crew)
        (planned,) = crew.quarantine.schedule([kept.mid], after=0.1, times=5, yes_run_again=True)
        assert planned.done
        crew.await_that(lambda: crew.starts("mails") == 2, "released by the monitor")
        crew.await_that(crew.quarantine.list, "back in quarantine")
        (again,) = crew.quarantine.list()
    assert (again.not_rerun, again.releases_left, again.retry_at) == (True, 0, None)


def test_NEW_16_a_quarantine_that_the_task_asks_for_is_asked_about_too(crew: Crew) -> None:
    crew.send("mails", "asks for quarantine")
    with crew.worker():
        crew.await_that(crew.quarantine.list, "in quarantine")
    (kept,) = crew.quarantine.list()
    assert (kept.cause, kept.not_rerun) == ("requested", True)
    (outcome,) = crew.quarantine.release([kept.mid])
    assert not outcome.done


@REDIS_FIRST
def test_NEW_16_with_guard_all_it_is_acknowledged_late_so_that_nothing_is_lost(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, poison_guard_all=True, poison_rerun=False)
    result = crew.send("mails_early")
    with crew.worker():
        crew.await_that(crew.quarantine.list, "in quarantine")
        (kept,) = crew.quarantine.list()
        assert (kept.id, kept.cause, kept.not_rerun) == (result.id, "signal:9", True)
        crew.marks.repair()
        crew.quarantine.release([kept.mid], yes_run_again=True)
        assert result.get(timeout=PATIENCE) == "repaired"
    assert crew.starts("mails_early") == 2


def test_NEW_16_while_the_ledger_is_away_it_waits_and_others_go_on(
    new_crew: Callable[..., Crew], redis_url: str, new_server: Callable[..., RedisServer]
) -> None:
    """Whatever poison_fail_open says: a run that is not on record could be run again."""
    ledger = new_server()
    crew = new_crew(redis_url, poison_redis_url=ledger.url())
    with crew.worker():
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        ledger.stop()
        waits = crew.send("mails", "at once")
        for n in range(1, 11):
            crew.send("healthy", n)
        crew.await_that(lambda: crew.done() == 11, "others go on")
        assert crew.starts("mails") == 0
        ledger.start()
        assert waits.get(timeout=PATIENCE) == "sent"
        crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.starts("mails") == 1
    assert not crew.quarantine.list()


@BOTH
def test_NEW_16_a_lost_broker_connection_neither_runs_it_twice_nor_keeps_it(
    crew: Crew, request: pytest.FixtureRequest
) -> None:
    results = [crew.send("mails", "waits") for _ in range(2)]
    with crew.worker():
        _begun(crew, 2)
        cut_broker_connections(crew, request)
        crew.await_that(lambda: "Connection to broker lost" in crew.log_text(), "noticed")
        crew.await_that(lambda: "Connected to" in crew.log_text().rpartition("broker lost")[2], "back")
        crew.marks.repair()
        assert [result.get(timeout=PATIENCE) for result in results] == ["sent", "sent"]
        crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.starts("mails") == 2
    assert not crew.quarantine.list()


@REDIS_FIRST
def test_NEW_16_cut_off_with_its_connection_it_is_kept(
    new_crew: Callable[..., Crew], broker_url: str, request: pytest.FixtureRequest
) -> None:
    crew = new_crew(broker_url, worker_cancel_long_running_tasks_on_connection_loss=True)
    crew.send("mails", "waits")
    with crew.worker():
        _begun(crew)
        cut_broker_connections(crew, request)
        (kept,) = _kept(crew)
    assert kept.cause in ("shutdown", "unknown")


@pytest.mark.matrix
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_NEW_16_a_run_longer_than_the_visibility_timeout_is_neither_run_twice_nor_kept(
    new_crew: Callable[..., Crew], redis_url: str, pool: str
) -> None:
    crew = new_crew(redis_url, broker_transport_options=eager(1))
    result = crew.send("mails", "waits")
    with crew.worker(pool=pool), crew.worker("w2", pool=pool), PlainNeighbour(redis_url, 1) as neighbour:
        _begun(crew)
        crew.await_that(lambda: neighbour.swept >= 3, "what is not renewed is delivered again")
        crew.marks.repair()
        assert result.get(timeout=PATIENCE) == "sent"
        crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.starts("mails") == 1
    assert not crew.quarantine.list()


@pytest.mark.matrix
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_NEW_16_a_second_delivery_while_its_worker_stands_still_waits_for_the_first_run(
    new_crew: Callable[..., Crew], redis_url: str, pool: str
) -> None:
    """Nothing renews it then, so that the broker's visibility timeout brings it back."""
    crew = new_crew(redis_url, broker_transport_options=eager(1), poison_activation_interval=600)
    result = crew.send("mails", "waits")
    with crew.worker(pool=pool) as first, crew.worker("w2", pool=pool) as second:
        _begun(crew)
        crew.await_that(lambda: [*crew.quarantine.queries.running()], "on record")
        (running,) = [start for _, start, _ in crew.quarantine.queries.running()]
        owner = first if running.worker.startswith("w1@") else second
        pids = [owner.main_pid, *owner.session_pids()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            with PlainNeighbour(redis_url, 1):
                crew.await_that(lambda: crew.quarantine.queries.totals()["parked"] == 1, "its copy waits")
        finally:
            for pid in pids:
                _go_on(pid)
        crew.marks.repair()
        assert result.get(timeout=PATIENCE) == "sent"
        crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.starts("mails") == 1
    assert not crew.quarantine.list()
