"""Transitions into quarantine, and out of it by what a person decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_poison.ledger.messages import NOTHING_KNOWN, Known, packed
from celery_poison.ledger.scripts import Caller, Code
from celery_poison.model import Start
from celery_poison.states import Event

#: How long convictions of a fingerprint count, and how long it stays blocked when there were enough.
REMEMBER_CONVICTIONS_MS = 30 * 86_400_000
#: After this long an operator's unfinished decision counts as abandoned.
DECISION_PATIENCE_MS = 30_000


class QuarantineTransitions(Caller):
    """What workers put into quarantine, and operators take out of it."""

    def quarantine(
        self,
        mid: str,
        start: Start,
        *,
        cause: str,
        reason: str,
        fields: Mapping[str, str | bytes | int],
        block_after: int | None = None,
        known: Known = NOTHING_KNOWN,
    ) -> bool:
        """Store the original message (NDLV); False when it was stored before. Acknowledge it only then.

        Args:
            block_after: convictions of one fingerprint after which it is blocked (NEW-3), 0 for never;
                None: this is no conviction.

        Raises:
            IllegalTransition: a person gave the message up.
            StaleDelivery: it runs elsewhere.
        """
        flat = [word for pair in fields.items() for word in pair]
        fingerprint = str(fields.get("fingerprint", ""))
        reply = self._call(
            "quarantine",
            {**self._of(mid, start.id), "convictions": self.keys.convictions(fingerprint)},
            rest=flat,
            fingerprint=fingerprint,
            block_after="" if block_after is None else block_after,
            remember_ms=REMEMBER_CONVICTIONS_MS,
            known=packed(known),
            mid=mid,
            start=start.encode(),
            cause=cause,
            reason=reason,
        )
        return bool(reply[0] is Code.OK)

    def would_quarantine(
        self, mid: str, start: Start, *, cause: str, reason: str, known: Known = NOTHING_KNOWN
    ) -> None:
        """Journal and count a conviction of which nothing comes (``poison_observe_only``)."""
        arguments: dict[str, Any] = {"mid": mid, "start": start.encode(), "cause": cause, "reason": reason}
        arguments["known"] = packed(known)
        self._call("would_quarantine", {"lineage": self.keys.lineage(start.id)}, **arguments)

    # --- what a person decides ----------------------------------------------------------------

    def decide(self, mid: str, verb: str, actor: str, note: str = "") -> int:
        """Reserve a message in quarantine for one operator; return the number of the decision.

        Raises:
            MessageNotFound, IllegalTransition: it is not in quarantine.
            DecisionPending: another operator is at it.
        """
        arguments: dict[str, Any] = {"verb": verb, "actor": actor, "note": note}
        arguments["patience_ms"] = DECISION_PATIENCE_MS
        return int(self._call("decide", {"message": self.keys.message(mid)}, **arguments)[1])

    def undecide(self, mid: str, number: int) -> None:
        """Give a reserved message back after a failed attempt, unless somebody took it over."""
        self._call("undecide", {"message": self.keys.message(mid)}, number=number)

    def released(self, mid: str, id: str, release: int, actor: str = "", note: str = "") -> None:
        """Complete a release whose message was published (TBDL, on probation). Idempotent."""
        arguments: dict[str, Any] = {"mid": mid, "release": release, "actor": actor, "note": note}
        self._call("released", self._of(mid, id), **arguments)

    def give_up(self, mid: str, event: Event, actor: str, note: str, number: int = 0) -> None:
        """Complete a ``failed`` or ``discarded`` decision (FAIL).

        Raises:
            StaleDelivery: somebody else took the decision over.
        """
        arguments: dict[str, Any] = {"mid": mid, "event": event.value, "actor": actor, "note": note}
        self._call("give_up", {"message": self.keys.message(mid)}, **arguments, number=number)
