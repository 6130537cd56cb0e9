"""Whom an act is for: messages that were ticked, or everything that matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celery_poison.errors import PoisonError
from celery_poison.flower.actions import Action
from celery_poison.model import MessageRecord
from celery_poison.quarantine import Quarantine
from celery_poison.quarantine.filters import Filter
from celery_poison.states import State


class NothingChosen(PoisonError):
    """An act was asked for without saying on what."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Messages named one by one, or all that match a filter.

    Attributes:
        until: of those that match, only what came until then, in seconds of Redis' clock: what arrives after
            somebody looked was not meant.
    """

    ids: tuple[str, ...] = ()
    everything: bool = False
    text: str = ""
    until: float | None = None

    def check(self) -> None:
        """Refuse what names nobody, and a filter that is none.

        Raises:
            NothingChosen, BadFilter
        """
        if bool(self.ids) == self.everything:
            raise NothingChosen("Say which messages: tick some, or choose everything that matches")
        if self.everything:
            _ = self.where

    @property
    def where(self) -> Filter | None:
        return Filter.parse(self.text) if self.text else None

    def among(self, records: Sequence[MessageRecord]) -> list[MessageRecord]:
        """Return those of ``records`` that are meant."""
        if not self.everything:
            wanted = {*self.ids}
            return [record for record in records if record.mid in wanted or record.id in wanted]
        where = self.where
        return [
            record for record in records if self._in_time(record) and (not where or where.matches(record))
        ]

    def of(self, quarantine: Quarantine, action: Action) -> Sequence[str]:
        """Return the ids at the moment when the act begins."""
        if not self.everything:
            return self.ids
        states = [state for state in (State.NDLV, State.FAIL) if state in action.states]
        found = (record for state in states for record in quarantine.list(state=state, where=self.where))
        return [record.mid for record in found if self._in_time(record)]

    def _in_time(self, record: MessageRecord) -> bool:
        return self.until is None or (record.quarantined_at or 0.0) <= self.until
