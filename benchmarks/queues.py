"""The queue of one round: filled beforehand, handed to the worker in one step, awaited until it is empty."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Self

import repository  # noqa: F401 - whose `tests` are meant below
import workers
from celery import Celery

from celery_poison.testing import RedisServer, Worker, wait_until
from tests.harness.servers import RabbitServer


class RedisQueue:
    """A list that is renamed."""

    def __init__(self, server: RedisServer, task: str, *, guarded: bool, results: bool) -> None:
        self.url = server.url(0)
        self._client = server.client(decode_responses=False)
        self._published = partial(workers.published, task, guarded=guarded, results=results)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def stage(self, count: int) -> None:
        workers.stage(self._client, self._published(count=count))

    def release(self) -> None:
        workers.release(self._client)

    def drain(self, running: Worker) -> None:
        workers.drain(self._client, running)


class RabbitQueue:
    """A queue that the worker is told to leave, and to consume again.

    RabbitMQ tells at once how many messages it has not handed out yet, and no more: those that the worker has
    fetched ahead are not waited for.
    """

    def __init__(self, task: str, env: dict[str, str]) -> None:
        self._task, self._env, self._stack = task, env, ExitStack()

    def __enter__(self) -> Self:
        self.url = self._stack.enter_context(RabbitServer()).url()
        app = Celery(broker=self.url, set_as_current=False)
        self._control = app.control
        self._channel = self._stack.enter_context(app.connection_for_write()).default_channel
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stage(self, count: int) -> None:
        wait_until(
            lambda: self._control.cancel_consumer(workers.QUEUE, reply=True), what="the worker answers"
        )
        workers.publish(self._task, count, self._env | {"BENCH_BROKER": self.url})

    def release(self) -> None:
        self._control.add_consumer(workers.QUEUE)

    def drain(self, running: Worker) -> None:
        state = partial(self._channel.queue_declare, workers.QUEUE, passive=True)
        workers.await_empty(running, lambda: state().message_count == 0)
