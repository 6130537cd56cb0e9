"""Alive is not working: a worker that lives and does nothing is named by the word for its state (NEW-25)."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from celery_poison.metrics import register
from tests.cli.conftest import Console
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
        registry = CollectorRegistry()
        with register(site.app, interval=0.1, registry=registry):
            counted = ("stuck_workers", ("stuck loop",))
            site.await_that(lambda: scraped(registry).get(counted) == 1, "it is counted")
        site.await_that(lambda: condition() == "working", "it turns again")
        assert w1.log_text().count("this worker does not work (stuck loop): its event loop") == 1
        site.await_that(lambda: "works again; it was: stuck loop" in w1.log_text(), "it is logged")
        assert console.json("ready")["ready"]
        assert site.result_of(site.send("where", 2, 0)) == "w1@test"
    assert site.nobody_is_blamed()
