"""What an earlier broker connection left in a worker is void."""

from __future__ import annotations

import select
from contextlib import suppress
from functools import partial
from inspect import isgenerator
from typing import Any

from celery.worker.state import active_requests

from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.model import Phase
from celery_poison.worker.background import Background
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.lease import Lease
from celery_poison.worker.rejoin import Incarnation

#: Milliseconds for the rest of a result that does not fit into the pipe at once.
REST_OF_A_RESULT = 1000


class ReconnectCleanup:
    """Clears up in one worker when a broker connection is lost, and when the next one begins."""

    def __init__(
        self,
        ledger: Ledger,
        inflight: InFlight,
        background: Background,
        me: Incarnation,
        lease: Lease,
    ) -> None:
        self._ledger = ledger
        self._inflight = inflight
        self._background = background
        self._me = me
        self._lease = lease

    def refuse(self) -> None:
        """Let nothing begin any more that has not: it goes back to the broker now."""
        self._lease.void(self._me.issued)

    def drop(self) -> None:
        """Drop what had not begun: the broker delivers it again."""
        self.refuse()
        if void := self._inflight.connection_lost(active_requests):
            self._background.do(partial(take_back_claims, self._ledger, void))


def hear_of_begun(consumer: Any) -> None:
    """Read what the processes of a prefork pool have said: a task that has begun is not given back.

    The event loop reads it otherwise, and may have been kept from that by a broker that does not answer. What
    begins after this is void (:meth:`ReconnectCleanup.refuse`, before). Read against Celery 5.7.
    """
    pool: Any = getattr(consumer.pool, "_pool", None)
    hub = consumer.hub
    for fd in [*getattr(pool, "_fileno_to_outq", ())] if hub is not None else []:
        with suppress(OSError, EOFError):  # its process is gone
            _read_all(fd, pool, hub)


def _read_all(fd: int, pool: Any, hub: Any) -> None:
    said = select.poll()
    said.register(fd, select.POLLIN)
    rest = hub.readers.get(fd, (None,))[0]
    while said.poll(REST_OF_A_RESULT * isgenerator(rest)):
        if isgenerator(rest):
            next(rest, None)
        else:
            pool.handle_result_event(fd)
        if fd not in hub.readers:
            return  # its process is gone
        rest = hub.readers[fd][0]


def take_back_claims(ledger: Ledger, tokens: set[str]) -> None:
    """Their copies may come to another worker, and would wait there for as long as this one lives."""
    for mid, start, raw in Queries(ledger).running():
        if start.token in tokens and start.phase == Phase.CLAIMED:
            ledger.claim(mid, raw, None)
