"""Redis, RabbitMQ and SQS keep the promises of ``conformance.py``, each as far as it can."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_poison.broker.kinds import broker_of
from tests.broker.conformance import Bench, Conformance
from tests.broker.sqs import OPTIONS, SqsServer


def _bench(bench: Bench) -> Iterator[Bench]:
    yield bench
    bench.close()


class TestRedis(Conformance):
    @pytest.fixture
    def bench(self, redis_url: str) -> Iterator[Bench]:
        yield from _bench(Bench(redis_url, "redis://127.0.0.1:1/0"))


class TestRabbitMQ(Conformance):
    @pytest.fixture
    def bench(self, rabbit_url: str) -> Iterator[Bench]:
        yield from _bench(Bench(rabbit_url, "amqp://127.0.0.1:1//", refuses=True))


@pytest.mark.rest
class TestSqs(Conformance):
    @pytest.fixture
    def bench(self, sqs: SqsServer) -> Iterator[Bench]:
        options = {**OPTIONS, "visibility_timeout": 2}
        yield from _bench(Bench(sqs.url, "sqs://testing:testing@127.0.0.1:1//", options))


def test_NEW_30_what_a_broker_cannot_is_said_by_its_port() -> None:
    redis, amqp, sqs = (broker_of(_transport(name)) for name in ("redis", "pyamqp", "SQS"))
    assert (redis.lacks, amqp.lacks) == ("", "") and "look" in sqs.lacks
    assert [each.flags_redelivery for each in (redis, amqp, sqs)] == [True, True, False]
    assert [each.forgets for each in (redis, amqp, sqs)] == [True, False, False]
    assert [each.counts for each in (redis, amqp, sqs)] == [True, True, False]


def _transport(name: str) -> type:
    return type("Transport", (), {"__module__": f"kombu.transport.{name}"})
