"""What a worker does when it was taken for dead, and lives (EMS-8), and when it lost its broker connection.

It has a new name after it was taken for dead. Others have put back what it held, and may be running it. What
waits here is dropped. What runs goes on, and is this worker's again unless another one has started it
meanwhile. What an earlier broker connection left here is void, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from celery.utils.log import get_logger
from celery.worker.state import active_requests

from celery_poison.broker.kinds import broker_of
from celery_poison.errors import LedgerUnavailable, StaleDelivery
from celery_poison.ledger import Ledger
from celery_poison.model import Phase
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.lease import Lease
from celery_poison.worker.pool_processes import hear_of_begun
from celery_poison.worker.resync import Resync
from celery_poison.worker.site import Site

logger = get_logger("celery_poison")


@dataclass(eq=False, repr=False)
class Rejoin:
    """Lets one worker live on under a new name, and clears up behind each of its broker connections.

    Attributes:
        is_fenced: it was taken for dead, or its event loop stood, and has no new broker connection yet.
            Never one that only observes: nobody puts back what it holds, and a new name is all it needs.
    """

    site: Site
    lease: Lease
    inflight: InFlight
    resync: Resync
    _must_return = False
    _connections = 0
    is_fenced = False

    def taken_for_dead(self) -> None:
        """Take a new name (in the heartbeat's thread, which shares no connection with the background's)."""
        logger.critical(
            "celery_poison: this worker was silent for longer than poison_activation_interval=%s s,"
            " or cut off, and was taken for dead; its messages run elsewhere",
            self.site.settings.activation_interval,
        )
        self.is_fenced = self._must_return = not self.site.settings.observe_only
        self.site.me.rejoin()
        self.lease.rejoined()

    def go_through(self) -> None:
        """Take back what runs and is still this worker's, and begin afresh (in the background thread)."""
        if not self._must_return:
            return
        self._must_return = False
        for request in self.inflight.in_pool():
            try:
                self.site.ledger.messages.reclaim(request.mid, request.start())
            except StaleDelivery:
                self.site.loop.call_in_loop(request.end_stale)
            except LedgerUnavailable as error:
                self.site.complain(error)
        self.site.loop.call_in_loop(partial(self.site.loop.start_afresh, "it was taken for dead"))

    @property
    def has_reconnected(self) -> bool:
        """Whether the worker has lost its broker connection before."""
        return self._connections > 1

    def connected(self, consumer: Any) -> None:
        """A broker connection begins: what came by earlier ones and has not begun is dropped."""
        self.disconnected()
        self._connections += 1
        self.is_fenced = False
        if void := self.inflight.connection_lost(active_requests):
            self.site.background.do(partial(take_back_claims, self.site.ledger, void))
        self.resync.connected(broker_of(consumer.connection), again=self.has_reconnected)
        self.site.loop.consumer = consumer

    def disconnected(self) -> None:
        """The broker connection is gone: what came by it and has not begun is void, and delivered again."""
        self.site.loop.epoch += 1
        self.lease.void(self.site.me.issued)

    def away(self) -> None:
        """Note a lost connection while the worker stays: nothing is forgotten until there is another."""
        self.resync.broker_is_away = True
        self.disconnected()

    def begin_nothing(self) -> None:
        """What came by this connection and has not begun goes back while the event loop stands."""
        self.is_fenced = True
        self.site.loop.epoch += 1

    def channel_closes(self, channel: Any) -> None:
        """A channel closes, and what it holds goes back: from now on nothing of that may begin."""
        consumer = getattr(self.site.loop.consumer, "task_consumer", None)
        if consumer is not None and consumer.channel is channel:
            self.disconnected()
            hear_of_begun(self.site.loop.consumer)


def take_back_claims(ledger: Ledger, tokens: set[str]) -> None:
    """Their copies may come to another worker, and would wait there for as long as this one lives."""
    for mid, start, raw in ledger.read.running():
        if start.token in tokens and start.phase == Phase.CLAIMED:
            ledger.messages.claim(mid, raw, None)
