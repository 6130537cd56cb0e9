"""What an earlier broker connection left in a worker is void."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from celery.worker.state import active_requests

from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.model import Phase
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.lease import Lease
from celery_poison.worker.prefork import hear_of_begun
from celery_poison.worker.rejoin import Incarnation, Rejoin
from celery_poison.worker.resync import Resync
from celery_poison.worker.threads import Background, EventLoop


@dataclass(eq=False, repr=False)
class ReconnectCleanup:
    """Clears up in one worker when a broker connection is lost, and when the next one begins."""

    loop: EventLoop
    ledger: Ledger
    inflight: InFlight
    background: Background
    me: Incarnation
    lease: Lease
    rejoin: Rejoin
    resync: Resync
    _connections = 0

    @property
    def has_reconnected(self) -> bool:
        """Whether the worker has lost its broker connection before."""
        return self._connections > 1

    def connected(self, consumer: Any) -> None:
        """A broker connection begins: what came by earlier ones and has not begun is dropped."""
        self.disconnected()
        self._connections += 1
        self.rejoin.is_fenced = False
        if void := self.inflight.connection_lost(active_requests):
            self.background.do(partial(take_back_claims, self.ledger, void))
        forgets = consumer.connection.transport.driver_type == "redis"
        self.resync.connected(broker_forgets=forgets, again=self.has_reconnected)
        self.loop.consumer = consumer

    def disconnected(self) -> None:
        """The broker connection is gone: what came by it and has not begun is void, and delivered again."""
        self.loop.epoch += 1
        self.lease.void(self.me.issued)

    def away(self) -> None:
        """It is gone, and the worker stays: nothing is forgotten until there is another."""
        self.resync.broker_is_away = True
        self.disconnected()

    def channel_closes(self, channel: Any) -> None:
        """A channel closes, and what it holds goes back: from now on nothing of that may begin."""
        consumer = getattr(self.loop.consumer, "task_consumer", None)
        if consumer is not None and consumer.channel is channel:
            self.disconnected()
            hear_of_begun(self.loop.consumer)


def take_back_claims(ledger: Ledger, tokens: set[str]) -> None:
    """Their copies may come to another worker, and would wait there for as long as this one lives."""
    for mid, start, raw in Queries(ledger).running():
        if start.token in tokens and start.phase == Phase.CLAIMED:
            ledger.claim(mid, raw, None)
