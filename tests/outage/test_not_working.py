"""Alive is not working: a worker that lives and does nothing is named by the word for its state (NEW-25)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from celery_poison.metrics import register
from tests.cli.conftest import Console
from tests.fleet.crew import frozen
from tests.metrics.conftest import scraped
from tests.outage.conftest import Site

#: Seconds for which a loop may stand here.
STUCK_AFTER = 1.5


def test_NEW_25_a_worker_whose_event_loop_stands_is_named_until_it_turns_again(
    new_site: Callable[..., Site], broker_url: str
) -> None:
    site = new_site(broker_url, poison_stuck_after=STUCK_AFTER)
    console = Console(site.app)

    def condition() -> str:
        (worker,) = console.json("workers")
        return str(worker["condition"])

    with site.worker("w1") as w1:
        w1.wait_ready()
        assert site.result_of(site.send("where", 1, 0)) == "w1@test"
        assert condition() == "working"
        site.app.control.broadcast("hang", {"seconds": 6 * STUCK_AFTER}, reply=False)
        site.await_that(lambda: condition() == "stuck loop", "its loop is missed")
        assert "stuck loop" in console.out("workers")
        assert w1.is_alive()
        said = console.out("status", "--check", status=2)
        assert "broken: worker w1@test/" in said and "does not work (stuck loop): its event loop" in said
        assert "all is well" not in said and "1 alive, 0 silent, 0 stopping, 1 stuck loop" in said
        assert "cure: restart it" in console.run("ready", "w1@test", status=1).stderr
        (examined,) = [one for one in console.json("doctor") if one["check"] == "workers"]
        assert examined["level"] == "warn" and "stuck loop" in examined["said"], examined
        registry = CollectorRegistry()
        with register(site.app, interval=0.1, registry=registry):
            counted = ("stuck_workers", ("stuck loop",))
            site.await_that(lambda: scraped(registry).get(counted) == 1, "it is counted")
        site.await_that(lambda: condition() == "working", "it turns again")
        assert w1.log_text().count("this worker does not work (stuck loop): its event loop") == 1
        site.await_that(lambda: "works again; it was: stuck loop" in w1.log_text(), "it is logged")
        assert console.json("ready")["ready"]
        assert site.result_of(site.send("where", 2, 0)) == "w1@test"
        site.app.control.cancel_consumer(site.app.conf.task_default_queue)
        site.await_that(lambda: not console.json("workers")[0]["queues"], "it consumes nothing")
        assert console.json("ready")["ready"], "a person wanted that"
        assert "WARNING  worker w1@test" in console.out("status"), console.out("status")
    assert site.nobody_is_blamed()


@pytest.mark.rest
def test_NEW_25_a_broker_owes_no_answer_to_a_worker_whose_only_slot_runs_what_had_a_countdown(
    new_site: Callable[..., Site], redis_url: str
) -> None:
    site = new_site(redis_url, poison_stuck_after=STUCK_AFTER, worker_prefetch_multiplier=1)
    console = Console(site.app)
    conditions: set[str] = set()
    with site.worker("w1", concurrency=1) as w1:
        w1.wait_ready()
        # While it waits it has room for one more: a poll is under way when it begins and fills the worker.
        late = site.send("where", 1, 5 * STUCK_AFTER, countdown=1)

        def has_ended() -> bool:
            conditions.add(console.json("workers")[0]["condition"])
            return bool(late.state == "SUCCESS")

        site.await_that(has_ended, "the long task ends")
        assert conditions == {"working"} and "does not work" not in w1.log_text()
        assert site.result_of(site.send("where", 2, 0)) == "w1@test"
    assert site.nobody_is_blamed()


@pytest.mark.matrix
def test_NEW_25_a_worker_whose_pool_a_person_has_shrunk_to_nothing_is_named_while_something_waits_for_it(
    new_site: Callable[..., Site], broker_url: str
) -> None:
    site = new_site(broker_url, poison_stuck_after=STUCK_AFTER, worker_proc_alive_timeout=1.0)
    console = Console(site.app)
    with site.worker("w1") as w1:
        assert site.result_of(site.send("where", 1, 0)) == "w1@test"
        site.app.control.pool_shrink(w1.concurrency)
        site.await_that(lambda: not console.json("workers")[0]["portrait"]["children"], "its pool is empty")
        waits = site.send("where", 2, 0)
        site.await_that(
            lambda: console.json("workers")[0]["condition"] == "no children", "nothing runs there"
        )
        assert "its pool was shrunk to nothing" in console.out("status", "--check", status=2)
        site.app.control.pool_grow(1)
        assert site.result_of(waits) == "w1@test"
        site.await_that(lambda: console.json("workers")[0]["condition"] == "working", "it works again")
    assert site.nobody_is_blamed()


def test_NEW_25_a_worker_that_was_taken_for_dead_and_is_connected_still_is_named_until_it_is_back_or_dead(
    new_site: Callable[..., Site], broker_url: str
) -> None:
    site = new_site(broker_url)
    console = Console(site.app)

    def row() -> dict[str, Any]:
        return next((each for each in console.json("workers") if each["node"] == "w1@test"), {})

    with site.worker("w1") as w1, site.worker("w2") as w2:
        w1.wait_ready()
        w2.wait_ready()
        with frozen(*w1.session_pids()):
            site.await_that(lambda: row().get("condition") == "frozen", "it is missed")
            assert row()["pid"] == w1.main_pid and not row()["alive"]
            assert "frozen" in console.out("workers")
            shown = console.out("status", "--check", status=2)
            assert "1 alive, 0 silent, 0 stopping, 1 frozen" in shown
            assert "broken: worker w1@test/" in shown and "does not work (frozen): it was silent" in shown
            refused = console.run("ready", "w1@test", status=1).stderr
            assert f"cure: restart it (process {w1.main_pid} on " in refused
            assert console.json("ready", "w2@test")["ready"]
            registry = CollectorRegistry()
            with register(site.app, interval=0.1, registry=registry):
                counted = ("stuck_workers", ("frozen",))
                site.await_that(lambda: scraped(registry).get(counted) == 1, "it is counted")
                assert scraped(registry)["workers", ("silent",)] == 0
        site.await_that(lambda: row().get("condition") == "working", "it is back")
        assert "all is well" in console.out("status")
        w1.send_signal(signal.SIGSTOP)
        site.await_that(lambda: row().get("condition") == "frozen", "its main process is missed")
        w1.kill_group()
        site.await_that(lambda: not row(), "it has died")
        assert "nothing in quarantine: 1 worker alive, 1 lost" in console.out("status")
