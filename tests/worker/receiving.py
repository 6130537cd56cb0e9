"""The way of a message in a worker on Redis, from its queue to the request, without a worker."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.worker.consumer.consumer import Consumer
from celery.worker.request import Request
from kombu.messaging import Consumer as KombuConsumer

from celery_poison.broker.transport import guarded_connection
from celery_poison.errors import LedgerUnavailable
from celery_poison.plugin import plugin_of
from celery_poison.policy import Policy
from celery_poison.settings import Settings
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.quarantine_writer import QuarantineWriter
from celery_poison.worker.road import Road
from celery_poison.worker.threads import EventLoop
from celery_poison.worker.unprocessable import Unprocessable
from tests import PATIENCE, sites
from tests.sites import on_site


class Site:
    """The way of a message in a worker on Redis, from its queue to the request, without a worker.

    Attributes:
        message: what was received last.
        requested: messages of which Celery made a request.
        problems: what was wrong with our own hooks.
    """

    message: Any = None

    def __init__(self, redis_url: str, **given: Any) -> None:
        self.settings = Settings(**given)
        self.app = app = Celery("fuzz", broker=redis_url, set_as_current=False)
        app.conf.update(accept_content=["json"], result_backend=redis_url)
        app.task(self._run, name="fuzz.task", shared=False)
        app.finalize()
        self.requested: list[Any] = []
        self.problems: list[Exception] = []
        self.ledger = plugin_of(app).open_ledger()
        self._tokens = iter(range(10**9))
        self._connection = guarded_connection(lambda: "0" * 16)(redis_url)
        self.channel = self._connection.default_channel
        self._loop = EventLoop()
        self._loop.call_in_loop = lambda call: call()  # type: ignore[method-assign]
        self._loop.consumer = self._celerys = self._consumer()
        self.unprocessable = self._unprocessable()
        self.unprocessable.hook_into(self._celerys)
        road = self._road()
        road.stand_before_pool(self._celerys)
        self._celerys.update_strategies()
        self.unprocessable.handler = self._celerys.create_task_handler()
        consumer = KombuConsumer(
            self.channel,
            [app.amqp.queues["celery"]],
            on_message=self._note(road.receive),
            on_decode_error=self._note(self._celerys.on_decode_error),
            accept=["json"],
        )
        consumer.consume()

    def _note(self, handler: Callable[..., Any]) -> Callable[..., None]:
        def note(message: Any, *error: Exception) -> None:
            self.message = message
            handler(message, *error)

        return note

    def _run(self) -> None:
        raise AssertionError("a task was executed")

    def _consumer(self) -> Any:
        """Celery's own consumer, without a worker around it."""
        consumer = Consumer.__new__(Consumer)
        parts = {
            "app": self.app,
            "hostname": "w1@h",
            "strategies": {},
            "on_task_message": set(),
            "event_dispatcher": None,
            "connection_errors": self._connection.connection_errors,
            "channel_errors": self._connection.channel_errors,
            "restart_count": 0,
            "hub": None,
            "pool": SimpleNamespace(apply_async=None, is_green=False),
            "controller": SimpleNamespace(state=SimpleNamespace(revoked=set()), _process_task=self._request),
            "timer": SimpleNamespace(call_at=lambda eta, call, args, **options: self._request(*args)),
            "qos": SimpleNamespace(increment_eventually=lambda: None),
            "task_buckets": {"fuzz.task": None},
            "disable_rate_limits": True,
            "on_task_request": self._request,
            "_pending_operations": [],
            "_maximum_prefetch_restored": True,
        }
        vars(consumer).update(parts)
        return consumer

    def _request(self, request: Request) -> None:
        """Do with a request what a pool of processes does."""
        hard, soft = request.time_limits
        assert request.revoked() or pickle.dumps((request.request_dict, request.body, hard, soft))
        self.requested.append(request)
        request.message.ack()

    def _unprocessable(self) -> Unprocessable:
        self._site = site = sites.site(
            app=self.app,
            settings=self.settings,
            ledger=self.ledger,
            policies={},
            me=SimpleNamespace(next_token=lambda: f"b.{next(self._tokens)}", pid=1, worker="w1@h/b"),
            loop=self._loop,
            background=SimpleNamespace(do=_at_once),
            announce=SimpleNamespace(quarantined=lambda record: None),
            recorder=SimpleNamespace(secret=b"secret"),
            complain=self.problems.append,
            extensions=plugin_of(self.app).extensions,
        )
        self.writer = on_site(QuarantineWriter, **site.as_dict())
        return on_site(Unprocessable, **site.as_dict(), writer=self.writer)

    def _road(self) -> Road:
        """Lets in at sight, or has it looked at by whoever would drop it: nothing is looked up."""
        policies = {"fuzz.task": (Policy(), True)}
        self._site.plans.of(
            "fuzz.task", policies, (), lambda task: False, window=SimpleNamespace(is_suspected=False)
        )
        parts: dict[str, Any] = {
            "opening": self.unprocessable.take,
            "inflight": InFlight(),
            "broadcasts": SimpleNamespace(ordinary={"celery"}),
            "rejoin": SimpleNamespace(is_fenced=False),
        }
        return on_site(Road, **self._site.as_dict(), unprocessable=self.unprocessable, **parts)

    def close(self) -> None:
        self._connection.release()

    def receive(self, item: bytes) -> Any:
        """Take an item from its queue, as a worker's event loop does."""
        self.message = None
        self.channel.client.lpush("celery", item)
        while self.message is None:
            self._connection.drain_events(timeout=PATIENCE)
        self._celerys.perform_pending_operations()
        return self.message


def _at_once(job: Callable[[], object], *unavailable: object) -> None:
    """Do what the background thread does, again where the ledger was away."""
    try:
        job()
    except LedgerUnavailable:
        job()
