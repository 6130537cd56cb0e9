"""A worker that lives and consumes nothing is noticed, and nobody else is taken for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest
from kombu import Connection, Consumer, Producer, Queue
from prometheus_client import CollectorRegistry

from celery_poison.broker.transport import guarded_connection
from celery_poison.desk import queues
from celery_poison.metrics import register
from tests import PATIENCE, sampled
from tests.cli.conftest import Console
from tests.harness.proxy import TcpProxy
from tests.metrics.conftest import scraped
from tests.outage.conftest import Site

NewSite = Callable[..., Site]
BROKERS = pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
#: Seconds after which a quiet worker is looked at here.
QUIET = 2.0


@pytest.fixture
def site(
    new_site: NewSite, broker_url: str, new_redis_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> Site:
    """A fleet whose ledger is not on its broker, so that one can be away without the other."""
    monkeypatch.setattr(queues, "QUIET_FOR", QUIET)
    return new_site(broker_url, poison_redis_url=new_redis_url(), worker_prefetch_multiplier=1)


@pytest.fixture
def console(site: Site) -> Console:
    return Console(site.app)


@pytest.fixture
def proxy(broker_url: str) -> Iterator[TcpProxy]:
    broker = urlsplit(broker_url)
    with TcpProxy(broker.hostname or "", broker.port or 0) as proxy:
        yield proxy


def _deaf(console: Console) -> dict[str, dict[str, int]]:
    """Return node -> the messages that wait for it, of every worker that `status` calls deaf."""
    return {row["worker"].partition("/")[0]: row["waiting"] for row in console.json("status")["deaf"]}


@BROKERS
def test_a_worker_that_hears_nothing_of_its_broker_is_told_until_it_consumes_again(
    site: Site, console: Console, proxy: TcpProxy
) -> None:
    with site.worker("far", concurrency=1, env={"BROKER_URL": proxy.url(site.broker_url)}) as far:
        assert site.result_of(site.send("where", 0, 0)) == "far@test"
        assert console.json("ready") == {"ready": True, "workers": ["far@test"], "reasons": []}
        assert _deaf(console) == {}
        proxy.freeze()
        sent = [site.send("where", n, 0) for n in range(1, 6)]
        site.await_that(lambda: _deaf(console).get("far@test", {}).get("celery"), "it is told")

        said = console.out("status", "--check", status=2)
        assert "worker far@test/" in said and "has consumed nothing since 2" in said
        assert "cure: restart it" in said and "all is well" not in said
        assert far.is_alive() and "1 alive, 0 silent" in said, "though its heart beats"
        told = console.run("ready", "far@test", status=1).stderr
        assert "not ready: worker far@test/" in told and "cure: restart it" in told
        registry = CollectorRegistry()
        with register(site.app, interval=0.1, registry=registry):
            site.await_that(lambda: scraped(registry).get(("deaf_workers", ())) == 1, "counted")

        proxy.heal()
        assert {site.result_of(result) for result in sent} == {"far@test"}
        assert _deaf(console) == {}
        assert console.out("ready") == "ready: far@test\n"


@BROKERS
def test_a_worker_that_answers_pings_and_is_no_consumer_any_more_is_told_and_the_others_are_not(
    site: Site, console: Console
) -> None:
    with site.worker("w1") as w1, site.worker("w2", queues=["other"]) as w2:
        w1.wait_ready(), w2.wait_ready()
        control = site.app.control
        assert control.broadcast("go_deaf", destination=["w1@test"], reply=True, timeout=10, limit=1)
        site.send("where", 1, 0)
        site.await_that(lambda: _deaf(console) == {"w1@test": {"celery": 1}}, "it is told")
        assert control.ping(["w1@test"], timeout=10, limit=1), "as in the issues of Celery"
        console.run("ready", "w1@test", status=1)
        assert console.out("ready", "w2@test") == "ready: w2@test\n"


@BROKERS
def test_nobody_is_deaf_who_is_busy_or_idle_or_was_told_to_consume_nothing(
    site: Site, console: Console
) -> None:
    with ExitStack() as workers:
        for name, pool in {"solo": "solo", "full": "prefork", "idle": "threads", "paused": "prefork"}.items():
            options: dict[str, Any] = {"queues": [name], "concurrency": 1}
            workers.enter_context(site.worker(name, pool, **options)).wait_ready()
        cancelled = site.app.control.cancel_consumer(
            "paused", destination=["paused@test"], reply=True, timeout=10, limit=1
        )
        assert cancelled
        busy = [site.send("where", n, 9, queue=queue) for queue in ("solo", "full") for n in range(2)]
        for queue in ("solo", "full", "paused"):
            site.send("where", 9, 0, queue=queue)
        site.await_that(lambda: sum(site.starts().values()) == 2, "both busy ones run something")
        seen = []
        while not site.heard_for(3 * QUIET):
            seen.append(_deaf(console))
            assert console.json("ready")["ready"]
        assert len(seen) > 1 and not any(seen)
        assert sum(site.ends().values()) < len(busy), "they were busy for so long"
        site.app.control.add_consumer("paused", destination=["paused@test"], reply=True, timeout=10, limit=1)
        site.await_that(lambda: len([*site.ends().elements()]) == 7, "all is done")
        assert _deaf(console) == {}


@BROKERS
def test_a_channel_tells_when_it_heard_and_whether_it_may_take_more(broker_url: str) -> None:
    got: list[Any] = []
    with guarded_connection(lambda: "b00t")(broker_url) as connection:
        queue = Queue("q", durable=False)(connection.default_channel)
        consumer = Consumer(connection.default_channel, [queue], on_message=got.append)
        channel: Any = consumer.channel
        consumer.qos(prefetch_count=1)
        consumer.consume()
        assert channel.heard_at == 0 and not channel.is_full
        with Connection(broker_url) as sender:
            for number in range(3):
                Producer(sender).publish(number, routing_key="q")
        for taken, end in enumerate(("ack", "reject", "requeue"), 1):
            while len(got) < taken:
                connection.drain_events(timeout=PATIENCE)
            assert channel.is_full and monotonic() - channel.heard_at < PATIENCE
            getattr(got[-1], end)()
            assert not channel.is_full
