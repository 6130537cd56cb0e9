"""Consumers of a project's own beside the tasks: their callbacks decide, and no message is in two places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection

from celery_poison import Quarantine, install
from celery_poison.testing import Worker, wait_until
from tests import PATIENCE
from tests.strangers.consumers_app import FEEDS, SHAPES, build_app

ROOT = Path(__file__).resolve().parents[2]
BODIES = ["1", "2", "3"]


def _publish(url: str) -> None:
    with Connection(url) as connection, connection.Producer() as producer:
        for queue in FEEDS.values():
            for body in BODIES:
                keys = {"exchange": queue.exchange, "routing_key": queue.routing_key, "declare": [queue]}
                producer.publish(body, serializer="json", **keys)


def _waiting(url: str) -> dict[str, int]:
    with Connection(url) as connection, connection.channel() as channel:
        return {shape: int(queue(channel).queue_declare().message_count) for shape, queue in FEEDS.items()}


def _run(environ: dict[str, str], kind: str, log: Path, *queues: str) -> dict[str, list[str]]:
    """What the consumers saw until the worker has left, which consumes these queues itself."""
    app = build_app(environ)
    _publish(environ["BROKER_URL"])
    options: Any = {"env": {**environ, "KIND": kind}, "log_path": log, "cwd": ROOT}
    worker = Worker("tests.strangers.consumers_app", pool="threads", queues=["celery", *queues], **options)
    alone = [shape for shape, queue in FEEDS.items() if queue.name not in queues]
    with redis.Redis.from_url(environ["MARKS_URL"]) as marks, worker:
        worker.wait_ready()

        def everything() -> bool:
            return all(marks.llen(f"seen_{shape}") >= len(BODIES) for shape in alone)

        wait_until(everything, timeout=PATIENCE, what=worker.log_text)
        wait_until(lambda: not any(_waiting(environ["BROKER_URL"]).values()), what="nothing waits")
        assert app.send_task("consumers.work").get(timeout=PATIENCE) == 1
        worker.stop()
        return {
            shape: sorted(word.decode() for word in marks.lrange(f"seen_{shape}", 0, -1)) for shape in SHAPES
        }


def _quarantine(environ: dict[str, str]) -> Quarantine:
    app = build_app(environ)
    install(app)
    return Quarantine(app)


@pytest.fixture
def environ(broker_url: str, new_redis_url: Callable[[], str]) -> dict[str, str]:
    ledger = broker_url if broker_url.startswith("redis") else new_redis_url()
    told = {"BROKER_URL": broker_url, "POISON_REDIS_URL": ledger}
    return {**told, "RESULT_BACKEND": new_redis_url(), "MARKS_URL": new_redis_url()}


@pytest.mark.parametrize("kind", ["plain", "guarded"])
@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_the_callbacks_of_consumers_of_ones_own_decide_as_without_us(
    environ: dict[str, str], kind: str, tmp_path: Path
) -> None:
    assert _run(environ, kind, tmp_path / "log") == dict.fromkeys(SHAPES, BODIES)
    assert _waiting(environ["BROKER_URL"]) == {**dict.fromkeys(SHAPES, 0), "keep": 3}
    _nothing_is_unacknowledged(environ)
    assert not _quarantine(environ).list()


def test_on_a_queue_that_the_worker_consumes_too_each_message_is_kept_in_one_place(
    environ: dict[str, str], tmp_path: Path
) -> None:
    # By whichever connection's channel Redis was asked: the consumer that came last gets it, as in kombu.
    seen = _run(environ, "guarded", tmp_path / "log", "feed_ack", "feed_reject", "feed_no_ack")
    kept = _quarantine(environ).list()
    for shape in ("ack", "reject", "no_ack"):
        assert len(seen[shape]) + sum(record.queue == f"feed_{shape}" for record in kept) == len(BODIES)
    assert _waiting(environ["BROKER_URL"]) == {**dict.fromkeys(SHAPES, 0), "keep": 3}
    _nothing_is_unacknowledged(environ)


def _nothing_is_unacknowledged(environ: dict[str, str]) -> None:
    if environ["BROKER_URL"].startswith("redis"):
        with redis.Redis.from_url(environ["BROKER_URL"]) as broker:
            assert not broker.exists("unacked", "unacked_index")
