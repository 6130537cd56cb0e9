"""A worker whose event loop stands: its messages run elsewhere meanwhile, and once (NEW-25)."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from tests import sampled
from tests.harness.proxy import TcpProxy
from tests.outage.conftest import Site

#: Seconds for which a loop may stand here. One without a hub, where nothing happens, turns every two.
STUCK_AFTER, WITHOUT_HUB = 1.5, 3.0
#: What waits in the worker whose loop stands, for a slot or for its time.
WAITING, LATER = [1, 2, 3], [4, 5, 6]


CASES = sampled(
    [("redis", "prefork", True)],
    [
        ("redis", "prefork", False),
        ("redis", "threads", True),
        ("redis", "solo", True),
        ("rabbitmq", "prefork", False),
        ("rabbitmq", "threads", True),
    ],
)


@pytest.mark.parametrize(("broker_url", "pool", "looked_up"), CASES, indirect=["broker_url"])
def test_NEW_25_what_waits_for_an_event_loop_that_stands_runs_on_another_worker_and_nothing_runs_twice(
    new_site: Callable[..., Site], broker_url: str, pool: str, looked_up: bool
) -> None:
    limit = 100_000 if looked_up else None  # who has one has each message claimed before it begins
    site = new_site(
        broker_url,
        broker_heartbeat=2,  # RabbitMQ closes a connection that missed two of them
        poison_stuck_after=STUCK_AFTER if pool == "prefork" else WITHOUT_HUB,
        poison_max_payload_bytes=limit,
        worker_prefetch_multiplier=5,
    )
    waits_on_loop = pool == "solo"  # for a slot: it stands by right, and hears no command
    running, waiting = ([], []) if waits_on_loop else ([11, 12], WAITING)
    with site.worker("w1", pool) as w1:
        w1.wait_ready()
        long = [site.send("where", n, 4 * STUCK_AFTER) for n in running]
        site.await_that(lambda: set(running) <= site.starts().keys(), "its slots are taken")
        sent = [site.send("where", n, 0) for n in waiting]
        # Of other pools, a thread beside the loop begins them.
        countdown = STUCK_AFTER if pool == "prefork" else 6 * WITHOUT_HUB
        sent += [site.send("where", n, 0, countdown=countdown) for n in LATER]
        site.await_that(lambda: w1.log_text().count("received") == len(long + sent), "it holds them all")
        site.app.control.broadcast("stand", destination=["w1@test"], reply=False)
        site.await_that(lambda: site.marks.count("loop", "stands"), "its loop stands")
        with site.worker("w2") as w2:
            assert {site.result_of(each) for each in sent} == {"w2@test"}
            site.await_that(lambda: site.ends().keys() >= set(running), "what ran there has ended")
            assert w1.log_text().count("the event loop has stood for longer than") == 1
            site.marks.open_gate()
            site.await_that(lambda: "begins afresh: its event loop stood" in w1.log_text(), "it turns")
            assert {site.result_of(each) for each in long} <= {"w1@test"}
            site.await_that(site.is_over, "all is on record")
            w2.stop()
        assert site.result_of(site.send("where", 20, 0)) == "w1@test", "it works again"
        assert site.ran_once() and len(site.starts()) == len(running + waiting + LATER) + 1
    assert site.nobody_is_blamed()


@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
def test_NEW_25_a_loop_that_waits_for_a_free_greenlet_is_not_called_stuck_and_gives_nothing_back(
    new_site: Callable[..., Site], broker_url: str
) -> None:
    site = new_site(broker_url, poison_stuck_after=WITHOUT_HUB)
    with site.worker("w1", "gevent", concurrency=1) as w1:
        w1.wait_ready()
        sent = [site.send("where", n, 2 * WITHOUT_HUB) for n in (3, 4)]
        assert {site.result_of(each) for each in sent} == {"w1@test"}
        assert "stuck loop" not in w1.log_text() and "begins afresh" not in w1.log_text()
    assert site.ran_once()


@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
def test_NEW_25_what_waits_behind_a_broker_connection_that_is_half_open_runs_on_another_worker_and_once(
    new_site: Callable[..., Site], broker_url: str, new_redis_url: Callable[[], str]
) -> None:
    """Celery's own heartbeat is published on it, and the event loop waits for the answer."""
    site = new_site(
        broker_url,
        poison_redis_url=new_redis_url(),
        poison_stuck_after=STUCK_AFTER,
        worker_prefetch_multiplier=5,
    )
    broker = urlsplit(broker_url)
    with (
        TcpProxy(broker.hostname or "", broker.port or 0) as proxy,
        site.worker("w1", env={"BROKER_URL": proxy.url(broker_url)}) as w1,
    ):
        w1.wait_ready()
        long = [site.send("where", n, 4 * STUCK_AFTER) for n in (11, 12)]
        site.await_that(lambda: {11, 12} <= site.starts().keys(), "its slots are taken")
        sent = [site.send("where", n, 0) for n in WAITING]
        site.await_that(lambda: w1.log_text().count("received") == 5, "it holds them all")
        proxy.strand()
        with site.worker("w2") as w2:
            w2.wait_ready()
            assert {site.result_of(each) for each in sent} == {"w2@test"}
            site.await_that(lambda: site.ends().keys() >= {11, 12}, "what ran there has ended")
            assert "the event loop has stood for longer than" in w1.log_text()
            proxy.drop_connections()  # as the kernel does after minutes
            site.await_that(lambda: "Connected to" in w1.log_text().rpartition("lost")[2], "it is back")
            assert {site.result_of(each) for each in long} <= {"w1@test"}
            site.await_that(site.is_over, "all is on record")
            w2.stop()
        assert site.result_of(site.send("where", 20, 0)) == "w1@test", "it works again"
        assert site.ran_once() and len(site.starts()) == 6
    assert site.nobody_is_blamed()
