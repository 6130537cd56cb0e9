"""Notes in the ledger about the notifications that receivers have taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_poison.basics.numbers import whole
from celery_poison.basics.text import decoded
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors


class Notes:
    """Every method raises ``LedgerUnavailable`` when Redis is away."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def read(self) -> dict[str, int]:
        """Return the fields of the hash ``notified``: group and receiver -> messages that were in it."""
        with clear_errors("reading which receivers were notified"):
            raw: Any = self._ledger.client.hgetall(self._ledger.keys.of("notified"))
        return {decoded(field): whole(count) for field, count in raw.items()}

    def note(self, fence: int, outcome: str = "", changes: Mapping[str, int | str] | None = None) -> None:
        """Note and count the notifications of a receiver; without either this only checks the fence.

        Args:
            fence: of the active monitor.
            outcome: ``sent`` or ``failed``.
            changes: fields of the hash ``notified``; an empty value: forget it.

        Raises:
            Fenced: another monitor took over.
        """
        name = f"{__package__}:note_notified"
        self._ledger.scripts.call(name, rest=changes or {}, fence=fence, outcome=outcome)
