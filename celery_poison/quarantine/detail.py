"""All that is known about one message: its record, its part of the journal, and its original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.quarantine.sentences import STANDING, Entry, how_it_ended, why
from celery_poison.rules.failures import KeptFailure
from celery_poison.states import Event, State

_COUNTS = ("deliveries", "crashes", "strikes", "failures")


class Detail(NamedTuple):
    """Everything that is known about one message.

    Attributes:
        history: the journal's entries about it, oldest first.
        stored: the original message, if it lies in the ledger and not with the broker.
        failure: what its attempts raised, if it is kept for that.
        copy: what is known of its changed copy, if a person has made one.
        observe_only: nothing comes of its deaths (``poison_observe_only``).
    """

    record: MessageRecord
    history: Sequence[Entry]
    stored: StoredMessage | None
    failure: KeptFailure | None = None
    copy: Detail | None = None
    observe_only: bool = False

    @property
    def story(self) -> str:
        """What happened to the message, how it ended if it has, and what became of its changed copy."""
        ended = how_it_ended(self.history) if self.record.state == State.DLVD else ""
        copy = f"Of the copy: {STANDING[self.copy.record.state]} {self.copy._own}" if self.copy else ""
        return " ".join(filter(None, (ended, why(self.record, observe_only=self.observe_only), copy)))

    @property
    def _own(self) -> str:
        """What happened to a copy: its counts and causes are the original's, if it has ended well."""
        ended = how_it_ended(self.history) if self.record.state == State.DLVD else ""
        return ended or self.story

    def as_dict(self) -> dict[str, Any]:
        """Return what ``show --json`` prints, but for the body."""
        shown = {**self.record.as_dict(), "story": self.story, "history": self.history}
        if self.stored is not None:
            names = ("content_type", "content_encoding", "headers", "properties")
            shown.update((name, getattr(self.stored, name)) for name in names)
        if self.failure is not None:
            shown["failure"] = self.failure.as_dict()
        return shown


def remembered(history: Sequence[Entry]) -> MessageRecord:
    """Return what the last journal entry says about a message of which no record is left."""
    last = history[-1]
    names = ("id", "mid", "task", "queue", "cause", "worker", "incident", *_COUNTS)
    found = MessageRecord.from_hash({name: last[name] for name in names}, State(last["state"]))
    return replace(found, releases=sum(entry["event"] == Event.RELEASED for entry in history))
