"""Transitions of messages into quarantine, and of the groups in which those there are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.messages import NOTHING_KNOWN, Known, packed
from celery_poison.ledger.scripts import Code, Part
from celery_poison.model import Start
from celery_poison.rules.destinations import SYSTEM_ROUTE, Route

#: How long convictions of a fingerprint count, and how long it stays blocked when there were enough.
REMEMBER_CONVICTIONS_MS = 30 * 86_400_000
#: How long it is known what was imported, so that the same file does it once.
REMEMBER_IMPORTS_MS = 30 * 86_400_000
#: Messages that are put into their groups in one step.
_REGROUPED = 500


class QuarantineTransitions(Part):
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
        route: Route = SYSTEM_ROUTE,
        known: Known = NOTHING_KNOWN,
    ) -> bool:
        """Store the original message (NDLV); False when it was stored before. Acknowledge it only then.

        Args:
            block_after: convictions of a fingerprint that block it (NEW-3), 0 for never; None: this is none.
            limit: messages in quarantine beyond which it is not kept; None: kept in any case.
            route: where it goes from there by itself.

        Raises:
            IllegalTransition: a person gave the message up.
            QuarantineFull: ``limit`` is reached.
            StaleDelivery: it runs elsewhere.
        """
        fingerprint = str(fields.get("fingerprint", ""))
        words: dict[str, Any] = {"mid": mid, "start": start, "cause": cause, "reason": reason, "limit": limit}
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

    def import_message(
        self, mid: str, id: str, fields: Mapping[str, str | bytes | int], *, actor: str, note: str
    ) -> bool:
        """Store a message of another ledger (NDLV); False if it is here, or was imported lately."""
        words = {"actor": actor, "note": note, "remember_ms": REMEMBER_IMPORTS_MS}
        return self._scripts.call("import", self._of(mid, id), rest=fields, mid=mid, **words)[0] is Code.OK

    def observe(
        self, mid: str, start: Start, *, cause: str, reason: str, known: Known = NOTHING_KNOWN
    ) -> bool:
        """Journal and count a conviction that is only observed; False where it is in the journal already."""
        words: dict[str, Any] = {"mid": mid, "start": start, "cause": cause, "reason": reason}
        return self._scripts.call("would_quarantine", **words, known=packed(known))[0] is Code.OK


class GroupTransitions(Part):
    """Groups of messages in quarantine, put right where an older version has left them wrong."""

    def note_repair(self, ends: bool = False) -> None:
        """Note that groups are being put right, or (``ends``) that they have been."""
        with clear_errors("noting a repair"):
            key = self._scripts.keys.groups_repair
            self._scripts.client.delete(key) if ends else self._scripts.client.set(key, "1")

    def regroup(self, mids: Sequence[str]) -> None:
        """Put messages in quarantine into their groups, where a version of before has not."""
        for start in range(0, len(mids), _REGROUPED):
            page = mids[start : start + _REGROUPED]
            self._scripts.call("regroup", rest=page)

    def ungroup(self, kind: str, labels: tuple[str, str, str], mids: Sequence[str]) -> None:
        """Take those out of a group that are not in quarantine any more: a version of before left them there.

        Args:
            labels: task, cause, and queue or fingerprint.
        """
        task, cause, third = labels
        self._scripts.call("ungroup", rest=mids, kind=kind, task=task, cause=cause, third=third)
