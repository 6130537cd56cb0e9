"""Transitions of messages into quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_poison.ledger.messages import NOTHING_KNOWN, Known, packed
from celery_poison.ledger.scripts import Code, LedgerPart
from celery_poison.model import Start
from celery_poison.rules.destinations import SYSTEM_ROUTE, Route

#: How long convictions of a fingerprint count, and how long it stays blocked when there were enough.
REMEMBER_CONVICTIONS_MS = 30 * 86_400_000


class QuarantineTransitions(LedgerPart):
    """The ways of a message into quarantine."""

    def store(
        self,
        mid: str,
        start: Start,
        *,
        cause: str,
        reason: str,
        fields: Mapping[str, str | bytes | int],
        block_after: int | None = None,
        limit: int | None = None,
        limit_bytes: int | None = None,
        route: Route = SYSTEM_ROUTE,
        known: Known = NOTHING_KNOWN,
    ) -> bool:
        """Store the original message (NDLV); False when it was stored before. Acknowledge it only then.

        Args:
            block_after: convictions of a fingerprint that block it (NEW-3), 0 for never; None: this is none.
            limit: messages in quarantine beyond which it is not kept; None: kept in any case.
            limit_bytes: of what never reached a task, beyond which it is not kept; None: this is not counted.
            route: where it goes from there by itself.

        Raises:
            IllegalTransition: a person gave the message up.
            QuarantineFull: ``limit`` or ``limit_bytes`` is reached.
            StaleDelivery: it runs elsewhere.
        """
        fingerprint = str(fields.get("fingerprint", ""))
        words: dict[str, Any] = {"mid": mid, "start": start, "cause": cause, "reason": reason, "limit": limit}
        words["limit_bytes"] = limit_bytes
        reply = self._scripts.call(
            "quarantine",
            {"convictions": self._scripts.keys.convictions(fingerprint)},
            rest=fields,
            fingerprint=fingerprint,
            block_after=block_after,
            remember_ms=REMEMBER_CONVICTIONS_MS,
            destination=route.queue,
            retry_ms=route.retry_ms,
            known=packed(known),
            **words,
        )
        return reply[0] is Code.OK

    def observe(
        self, mid: str, start: Start, *, cause: str, reason: str, known: Known = NOTHING_KNOWN
    ) -> bool:
        """Journal and count a conviction that is only observed; False where it is in the journal already."""
        words: dict[str, Any] = {"mid": mid, "start": start, "cause": cause, "reason": reason}
        return self._scripts.call("would_quarantine", **words, known=packed(known))[0] is Code.OK
