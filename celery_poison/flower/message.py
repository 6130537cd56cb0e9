"""One message's page: what is on record, its attempts, what else happened, and the message itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_poison.causes import is_users
from celery_poison.errors import LedgerUnavailable, MessageNotFound
from celery_poison.failures import KeptFailure
from celery_poison.flower import words
from celery_poison.flower.ledger import AsyncLedger
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.quarantine import Quarantine, story

#: Seconds that a page waits for a message and its part of the journal.
PATIENCE = 4.0
#: Entries of a history, headers and properties that are shown at most.
_ENTRIES, _FIELDS = 500, 100
#: What people decide about a message.
_DECISIONS = ("released", "failed", "discarded", "edited", "copied", "restored", "purged")


class Step(NamedTuple):
    """One line of a message's life, ready to be shown.

    Attributes:
        kind: the journal's word for it; colours it.
        known: name -> value, of what else the journal knows, and of what a death left behind.
    """

    at: float
    kind: str
    sentence: str
    known: dict[str, str]


class Stack(NamedTuple):
    """Calls, the innermost first.

    Attributes:
        own: down to where the user's code was entered: each, and whether it is the user's.
        below: those of Celery and of the worker.
    """

    own: list[tuple[str, bool]]
    below: list[str]


@dataclass(frozen=True, slots=True)
class MessageStory:
    record: MessageRecord
    told: str
    steps: list[Step]
    left_out: int
    stored: StoredMessage | None
    failure: KeptFailure | None = None

    @property
    def raised(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """What its attempts raised, if it is kept for that: title -> rows."""
        return [
            (title, [(words.say(name), words.say(text, 1000)) for name, text in rows])
            for title, rows in story.failure_rows(self.failure)
            if rows
        ]

    @property
    def why(self) -> str:
        return words.say(self.told, 2000)

    @property
    def standing(self) -> str:
        return story.STANDING.get(self.record.state, "")

    @property
    def decisions(self) -> list[Step]:
        """The audit trail: what people decided."""
        return [step for step in self.steps if step.kind in _DECISIONS]

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Those of the message, but for two that repeat the arguments, with what is hidden of them."""
        told = self.stored.headers if self.stored else {}
        return _table({name: told[name] for name in told if name not in ("argsrepr", "kwargsrepr")})

    @property
    def properties(self) -> list[tuple[str, str]]:
        return _table(self.stored.properties if self.stored else {})

    @property
    def stack(self) -> Stack:
        """Where its code was when it died, the innermost call first."""
        frames = [words.say(frame, 400) for frame in self.record.evidence.stack]
        called = [(frame, is_users(frame)) for frame in frames]
        entry = max((number for number, (_, own) in enumerate(called, 1) if own), default=len(called))
        return Stack(called[:entry], frames[entry:])


async def read_story(ledger: AsyncLedger, id: str) -> MessageStory:
    """Return what is known about a message, by mid or task id.

    Raises:
        MessageNotFound: nobody knows it.
        AmbiguousId: several messages have this task id.
        LedgerUnavailable: Redis does not answer.
    """
    try:
        return await ledger.ask(lambda: _read(ledger.quarantine, id), PATIENCE)
    except UnicodeError:
        raise MessageNotFound(f"no message {words.say(id)!r}") from None
    except TimeoutError:
        raise LedgerUnavailable("its part of the journal was not read in time") from None


def _read(quarantine: Quarantine, id: str) -> MessageStory:
    detail = quarantine.detail(id)
    left_out = max(0, len(detail.history) - _ENTRIES)
    steps = [_step(entry) for entry in detail.history[left_out:]]
    return MessageStory(detail.record, detail.story, steps, left_out, detail.stored, detail.failure)


def _step(entry: Mapping[str, str]) -> Step:
    """Word an entry; ``memory_kb`` and ``release`` came with schema 2 of the journal."""
    kind, memory = entry.get("event", "?"), entry.get("memory_kb", "")
    known = {
        "start": entry.get("deliveries", ""),
        "process": entry.get("pid", "").removeprefix("0"),
        "memory": words.size(int(memory) * 1024) if memory.isdecimal() else "",
        "version": entry.get("release", ""),
        "incident": entry.get("incident", ""),
    }
    shown = {name: words.say(value) for name, value in known.items() if value}
    shown |= _evidence(entry.get("evidence", ""))
    return Step(words.at(entry), words.say(kind, 40), words.say(story.sentence(entry), 1000), shown)


def _evidence(text: str) -> dict[str, str]:
    try:
        found: Any = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return {"evidence": words.say(text, 2000)}
    return {words.say(name, 40): _told(value) for name, value in [*found.items()][:_FIELDS]}


def _told(value: Any) -> str:
    """Return a value of the evidence; a stack as people read it, with a line for each call."""
    return "\n".join(words.say(each) for each in value) if isinstance(value, list) else words.tell(value)


def _table(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    present = [(name, value) for name, value in sorted(values.items()) if value is not None]
    rows = [(words.say(name, 80), words.tell(value)) for name, value in present[:_FIELDS]]
    return rows + ([("…", f"{len(present) - _FIELDS} more")] if len(present) > _FIELDS else [])
