"""Hands over to quarantine the suspects that a person wants there (SAP-7)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from celery.worker import state

from celery_poison.ledger import Ledger
from celery_poison.ledger.requested_suspects import wanted
from celery_poison.worker.threads import EventLoop


def hand_over_requested(ledger: Ledger, loop: EventLoop) -> None:
    """Have what is wanted, and here, handed over (in the background thread).

    Raises:
        LedgerUnavailable: Redis is away.
    """
    if reasons := wanted(ledger):
        loop.call_in_loop(partial(_hand_over, reasons))


def _hand_over(reasons: Mapping[str, str]) -> None:
    here: list[Any] | None = None
    while here is None:
        with suppress(RuntimeError):  # a pool thread finished a request meanwhile
            here = [*{*state.reserved_requests, *state.active_requests}]
    for request in here:
        # Of a suspect there are notes, since it was looked up.
        if getattr(request, "poison", None) is not None and (reason := reasons.get(request.id)):
            request.hand_over(reason)
