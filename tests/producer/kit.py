"""A shop: an app, its outbox, its broker's queues, and a relay whose rounds a test makes itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from celery import Celery
from kombu import Connection, Exchange, Queue

from celery_poison import guarded, install
from celery_poison.broker.capture import Outgoing, captured_by
from celery_poison.extensions.outbox import outbox_of
from celery_poison.extensions.outbox.database import Mover
from celery_poison.extensions.outbox.lanes import FAILED, Lane, LaneRecord, Lanes
from celery_poison.extensions.outbox.packing import unpack
from celery_poison.extensions.outbox.relay import MOVER_BOUND, Rounds
from celery_poison.extensions.outbox.settings import OutboxSettings
from celery_poison.extensions.outbox.storing import Outbox
from celery_poison.ledger.connection import bound
from celery_poison.plugin import plugin_of
from celery_poison.rules.reports import Report

#: Nobody listens there.
NOWHERE = "redis://127.0.0.1:1/0"


def build_app(broker_url: str, ledger_url: str, **settings: Any) -> Celery:
    app = Celery("shop", broker=broker_url, set_as_current=False)
    app.conf.update(
        poison_redis_url=ledger_url,
        poison_outbox=True,
        # A busy machine is not what these tests are about.
        poison_outbox_timeout=60.0,
        poison_outbox_retry_interval=0.0,
        poison_outbox_resend_interval=600.0,
    )
    app.conf.update(settings)
    install(app)

    @guarded
    @app.task(shared=False, name="shop.charge")
    def charge(order: int, **options: Any) -> int:
        return order

    @guarded
    @app.task(shared=False, name="shop.pack")
    def pack(order: int) -> int:
        return order

    @guarded(outbox=False)
    @app.task(shared=False, name="shop.direct")
    def direct(order: int) -> int:
        return order

    @app.task(shared=False, name="shop.plain")
    def plain(order: int) -> int:
        return order

    return app


class Shop:
    """One app, and the pieces of its outbox."""

    def __init__(self, broker_url: str, ledger_url: str, **settings: Any) -> None:
        self.app = build_app(broker_url, ledger_url, **settings)
        self.plugin = plugin_of(self.app)
        self.ledger = self.plugin.open_ledger()
        self.outbox = Lanes(self.ledger)
        #: What was told to whoever makes error transactions.
        self.reports: list[Report] = []
        self.hear(self._told)
        self.healthy = Rounds(self.plugin, trouble=False, in_trouble=lambda: None)
        self.troubled = Rounds(self.plugin, trouble=True, in_trouble=lambda: None)

    def close(self) -> None:
        for rounds in (self.healthy, self.troubled):
            rounds.close()
            rounds._ledger.client.close()
        self.ledger.client.close()
        self.app.close()

    def hear(self, *told: Callable[[Report], Iterable[Outgoing]]) -> None:
        """Let these hear of what could not be sent, in place of those of the plugin."""
        self.plugin.extensions.send_failed = told

    def _told(self, report: Report) -> list[Outgoing]:
        self.reports.append(report)
        return []

    @property
    def storing(self) -> Outbox:
        """What its callers see."""
        outbox = outbox_of(self.plugin)
        assert outbox is not None
        return outbox

    def task(self, name: str) -> Any:
        return self.app.tasks[f"shop.{name}"]

    def charge(self, *orders: int, **options: Any) -> None:
        for order in orders:
            self.task("charge").apply_async([order], **options)

    def relay(self) -> None:
        """Let a relay do all that is due now."""
        while self.healthy.once() == 0.0 or self.troubled.once() == 0.0:
            pass

    def mover(self) -> Mover:
        """One who moves rows of the user's database."""
        ledger = self.plugin.open_ledger()
        bound(ledger.client, MOVER_BOUND)
        return Mover(ledger, str(self.plugin.settings.of(OutboxSettings).outbox_database))

    def move(self) -> None:
        """Move all rows of the user's database."""
        mover = self.mover()
        while mover.once() == 0.0:
            pass
        mover.leave()
        mover._ledger.client.close()

    def queued(self, queue: str = "celery") -> list[Any]:
        """First argument of every message in a queue of the broker, oldest first; they are taken out."""
        found = []
        with self.app.connection_for_read() as connection:
            bound = Queue(queue)(connection.default_channel)
            with suppress(*connection.channel_errors):  # there is no such queue
                while message := bound.get(no_ack=True):
                    found.append(message.payload[0][0])
        return found

    def waiting(self, lane: str | Lane = "celery") -> list[int]:
        """First argument of every message that waits in a lane, in order."""
        return [_order(unpack(packed)) for _, packed in self.outbox.messages(str(lane))]

    def failed(self) -> list[int]:
        return [_order(unpack(packed)) for _, packed in self.outbox.messages(FAILED)]

    def lanes(self) -> dict[str, LaneRecord]:
        return {str(Lane(each.queue, each.task, each.tied)): each for each in self.outbox.all()}

    def events(self) -> list[str]:
        """Names of what was journalled."""
        rows: Any = self.ledger.client.xrange(self.ledger.keys.journal)
        return [row[b"event"].decode() for _, row in rows]


def _order(message: Outgoing) -> int:
    return int(json.loads(message.body)[0][0])


def declare_otherwise(url: str, name: str, **arguments: Any) -> None:
    """Declare a queue on RabbitMQ, as somebody else would have it."""
    with Connection(url) as connection:
        Queue(name, Exchange(name), name, queue_arguments=arguments)(connection.default_channel).declare()


class tied:
    """What is published in here is stored as tied to the success of a task."""

    def __init__(self, shop: Shop) -> None:
        self._store = lambda outgoing: shop.storing.store(outgoing.as_tied())

    def __enter__(self) -> None:
        self._token = captured_by.set(self._store)

    def __exit__(self, *_: object) -> None:
        captured_by.reset(self._token)
