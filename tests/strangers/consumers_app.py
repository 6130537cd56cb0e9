"""A project with consumers of messages of its own beside the tasks.

There is a queue for each thing that they do with messages. KIND says whether the tasks are guarded.
"""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery, bootsteps
from kombu import Consumer, Exchange, Queue

#: What is done with messages.
SHAPES = ("ack", "on_message", "reject", "requeue", "keep", "no_ack")
FEEDS = {shape: Queue(f"feed_{shape}", Exchange("feed"), shape) for shape in SHAPES}


def _seen(body: Any, message: Any) -> None:
    with redis.Redis.from_url(os.environ["MARKS_URL"]) as marks:
        marks.rpush(f"seen_{message.delivery_info['routing_key']}", str(body))


def _ack(body: Any, message: Any) -> None:
    _seen(body, message)
    message.ack()


def _reject(body: Any, message: Any) -> None:
    _seen(body, message)
    message.reject()


def _requeue(body: Any, message: Any) -> None:
    """Put each back once."""
    with redis.Redis.from_url(os.environ["MARKS_URL"]) as marks:
        is_first = marks.sadd("requeued", str(body))
    if is_first:
        message.requeue()
    else:
        _ack(body, message)


CALLBACKS: dict[str, Any] = {"ack": _ack, "reject": _reject, "requeue": _requeue, "keep": _seen}


class Feed(bootsteps.ConsumerStep):
    def get_consumers(self, channel: Any) -> list[Consumer]:
        told = {shape: {"callbacks": [callback]} for shape, callback in CALLBACKS.items()}
        told["on_message"] = {"on_message": lambda message: _ack(message.payload, message)}
        return [Consumer(channel, [FEEDS[shape]], accept=["json"], **told[shape]) for shape in SHAPES[:-1]]


class FeedWithoutAcks(bootsteps.ConsumerStep):
    def get_consumers(self, channel: Any) -> list[Consumer]:
        return [Consumer(channel, [FEEDS["no_ack"]], callbacks=[_seen], accept=["json"], no_ack=True)]


def build_app(environ: Any = os.environ) -> Celery:
    app = Celery("consumers", broker=environ["BROKER_URL"], backend=environ["RESULT_BACKEND"])
    app.conf.update(poison_heartbeat_interval=0.3, poison_activation_interval=1.0)
    if environ.get("POISON_REDIS_URL"):
        app.conf.poison_redis_url = environ["POISON_REDIS_URL"]
    app.steps["consumer"].update([Feed, FeedWithoutAcks])
    return app


if "KIND" in os.environ:
    app = build_app()

    @app.task(name="consumers.work", shared=False)
    def work() -> int:
        return 1

    if os.environ["KIND"] == "guarded":
        from celery_poison import guarded

        guarded(work)
