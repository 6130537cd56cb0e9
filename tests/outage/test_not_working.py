"""Alive is not working: a worker that lives and does nothing is named by the word for its state (NEW-25)."""

from __future__ import annotations

from collections.abc import Callable

from tests.cli.conftest import Console
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
        site.app.control.broadcast("hang", {"seconds": 4 * STUCK_AFTER}, reply=False)
        site.await_that(lambda: condition() == "stuck loop", "its loop is missed")
        assert "stuck loop" in console.out("workers")
        assert w1.is_alive()
        site.await_that(lambda: condition() == "working", "it turns again")
        assert site.result_of(site.send("where", 2, 0)) == "w1@test"
    assert site.nobody_is_blamed()
