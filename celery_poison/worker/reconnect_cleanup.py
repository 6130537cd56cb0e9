"""What an earlier broker connection left in a worker is void."""

from __future__ import annotations

from functools import partial

from celery.worker.state import active_requests

from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.model import Phase
from celery_poison.worker import child
from celery_poison.worker.background import Background
from celery_poison.worker.inflight import InFlight


class ReconnectCleanup:
    """Clears up in one worker when a broker connection begins.

    Args:
        contained: whether tasks share this process.
    """

    def __init__(
        self,
        ledger: Ledger,
        inflight: InFlight,
        background: Background,
        *,
        contained: bool,
    ) -> None:
        self._ledger = ledger
        self._inflight = inflight
        self._background = background
        self._contained = contained

    def refuse(self) -> None:
        """Let nothing begin any more that has not: it goes back to the broker now."""
        if self._contained:  # Celery empties the queue of a prefork pool only
            child.refuse(self._inflight.tokens_in_pool())

    def drop(self) -> None:
        """Drop what had not begun: the broker delivers it again."""
        # All are refused first: one that begins at this moment may be refused for nothing, but none begins
        # that was delivered again.
        self.refuse()
        if void := self._inflight.connection_lost(active_requests):
            self._background.do(partial(take_back_claims, self._ledger, void))
        if self._contained:
            child.admit(self._inflight.tokens_in_pool())


def take_back_claims(ledger: Ledger, tokens: set[str]) -> None:
    """Their copies may come to another worker, and would wait there for as long as this one lives."""
    for mid, start, raw in Queries(ledger).running():
        if start.token in tokens and start.phase == Phase.CLAIMED:
            ledger.claim(mid, raw, None)
