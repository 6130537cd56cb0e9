"""A queue that takes nothing holds up neither other queues nor the monitor (MSG-4, WAS-8, NEW-9)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import redis

from tests import PATIENCE
from tests.fleet.crew import Watched

Refusing = Callable[[str, str], AbstractContextManager[None]]

BROKERS = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)


@pytest.fixture
def refusing(request: pytest.FixtureRequest) -> Refusing:
    """A context in which a queue of the broker takes nothing, though the broker itself does well."""

    @contextmanager
    def on_rabbitmq(url: str, queue: str) -> Any:
        server, vhost = request.getfixturevalue("rabbit_server"), unquote(urlsplit(url).path[1:])
        limit = '{"max-length": 0, "overflow": "reject-publish"}'
        server.ctl("set_policy", "-p", vhost, "--apply-to", "queues", queue, f"^{queue}$", limit)
        yield
        server.ctl("clear_policy", "-p", vhost, queue)

    @contextmanager
    def on_redis(url: str, queue: str) -> Any:
        client = redis.Redis.from_url(url)
        client.set(queue, "no list")
        yield
        client.delete(queue)

    return lambda url, queue: (on_redis if url.startswith("redis") else on_rabbitmq)(url, queue)


def _declare(crew: Watched, *queues: str) -> None:
    with crew.app.connection_for_write() as connection:
        for queue in queues:
            crew.app.amqp.Queues(None, create_missing=True)[queue](connection.default_channel).declare()


def _dies_and_is_noticed(crew: Watched) -> None:
    """Kill a worker that runs something; the monitor of another one must notice its broken connections."""
    with crew.worker("w2", queues=["other"]) as worker:
        crew.send("holds", 0, queue="other")
        crew.await_held(worker, 1)
        worker.kill_group()
        crew.await_events("failover_finished")
    (incident,) = crew.quarantine.queries.incidents(10)
    assert incident.how == "gone", "not by its silence, which takes much longer"


def _sent(crew: Watched) -> set[str]:
    return {record.id for record in crew.quarantine.list() if record.sent_at}


@BROKERS
def test_MSG_4_and_WAS_8_a_destination_that_refuses_is_waited_for_and_the_others_get_theirs(
    new_crew: Callable[..., Watched], broker_url: str, refusing: Refusing
) -> None:
    goes = {"a": {"exception_destination": "full"}, "b": {"exception_destination": "free"}}
    crew = new_crew(broker_url, poison_queues=goes)
    _declare(crew, "full", "free")
    with crew.worker("w1", queues=["a", "b", "celery"]):
        with refusing(broker_url, "full"):
            waiting = [crew.send("asks", "quarantine", queue="a").id for _ in range(3)]
            crew.await_that(lambda: len(crew.quarantine.list()) == 3, "these are in quarantine")
            others = [crew.send("asks", "quarantine", queue="b").id for _ in range(3)]
            crew.await_that(lambda: _sent(crew) >= {*others}, "sent to free")
            _dies_and_is_noticed(crew)
            for id in waiting:
                assert id not in _sent(crew)
                assert "as soon as the broker takes it" in crew.quarantine.detail(id).story
        crew.await_that(lambda: _sent(crew) >= {*waiting}, "room was made")
    assert "Traceback" not in crew.log_text()


@BROKERS
def test_MSG_4_a_parked_message_of_a_queue_that_refuses_blinds_no_monitor_and_holds_up_no_other(
    new_crew: Callable[..., Watched], broker_url: str, refusing: Refusing
) -> None:
    crew = new_crew(broker_url)
    with crew.worker("w1", queues=["full", "free", "celery"], concurrency=3):
        # Each second one waits, in the ledger, until the first one of its key has ended.
        pairs = {
            q: [crew.send("pays", n, "waits", queue=q) for _ in range(2)]
            for n, q in enumerate(("full", "free"))
        }
        crew.await_that(lambda: crew.quarantine.queries.totals()["parked"] == 2, "parked")
        assert crew.app.control.cancel_consumer("full", reply=True)
        with refusing(broker_url, "full"):
            crew.marks.repair()
            assert pairs["free"][1].get(timeout=PATIENCE)
            _dies_and_is_noticed(crew)
            assert crew.quarantine.queries.totals()["parked"] == 1, "it waits, and is seen"
        assert crew.app.control.add_consumer("full", reply=True)
        assert pairs["full"][1].get(timeout=PATIENCE)
    assert "Traceback" not in crew.log_text()
