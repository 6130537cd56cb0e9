"""One message's page: what is on record, its attempts, what else happened, and the message itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_poison.errors import LedgerUnavailable, MessageNotFound
from celery_poison.flower import words
from celery_poison.flower.ledger import AsyncLedger
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.quarantine import Quarantine, story

#: Seconds that a page waits for a message and its part of the journal.
PATIENCE = 4.0
#: Entries of a history, headers and properties that are shown at most.
_ENTRIES, _FIELDS = 500, 100

#: Events that end a start.
_ENDS = ("finished", "crashed", "interrupted", "rolled_back", "cleared")


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a message's life, ready to be shown.

    Attributes:
        kind: the journal's word for it; colours it.
        facts: name -> value, of what is known of this attempt: worker, process, memory and the like.
        evidence: name -> value, of what a death left behind.
    """

    at: float
    kind: str
    sentence: str
    attempt: bool
    facts: dict[str, str] = field(default_factory=dict)
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MessageStory:
    record: MessageRecord
    steps: list[Step]
    left_out: int
    stored: StoredMessage | None

    @property
    def why(self) -> str:
        return words.say(story.why(self.record), 2000)

    @property
    def standing(self) -> str:
        return story.STANDING.get(self.record.state, "")

    @property
    def decisions(self) -> list[Step]:
        """The audit trail: what people decided."""
        return [step for step in self.steps if step.kind in ("released", "failed", "discarded")]

    @property
    def headers(self) -> list[tuple[str, str]]:
        return _table(self.stored.headers if self.stored else {})

    @property
    def properties(self) -> list[tuple[str, str]]:
        return _table(self.stored.properties if self.stored else {})

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """What the producer lets people see: its ``argsrepr`` and ``kwargsrepr``, not the body."""
        headers = self.stored.headers if self.stored else {}
        shown = (("positional", headers.get("argsrepr")), ("by keyword", headers.get("kwargsrepr")))
        return [(name, words.tell(value)) for name, value in shown if value]


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
    record, entries, stored = quarantine.detail(id)
    left_out = max(0, len(entries) - _ENTRIES)
    return MessageStory(record, [_step(entry) for entry in entries[left_out:]], left_out, stored)


def _step(entry: Mapping[str, str]) -> Step:
    kind = entry.get("event", "?")
    return Step(
        at=words.at(entry),
        kind=words.say(kind, 40),
        sentence=words.say(story.sentence(entry), 1000),
        attempt=kind in _ENDS,
        facts=_facts(entry),
        evidence=_evidence(entry.get("evidence", "")),
    )


def _facts(entry: Mapping[str, str]) -> dict[str, str]:
    """Return what an entry knows of an attempt; ``memory_kb`` and ``release`` came with schema 2."""
    facts = {
        "start": entry.get("deliveries", ""),
        "worker": entry.get("worker", ""),
        "process": entry.get("pid", "").removeprefix("0"),
        "cause": entry.get("cause", ""),
        "release": entry.get("release", ""),
        "incident": entry.get("incident", ""),
    }
    if (took := entry.get("runtime_ms", "")).isdecimal():
        facts["ran for"] = f"{int(took) / 1000:g} s"
    if (memory := entry.get("memory_kb", "")).isdecimal():
        facts["memory"] = words.size(int(memory) * 1024)
    return {name: words.say(value) for name, value in facts.items() if value}


def _evidence(text: str) -> dict[str, str]:
    if not text:
        return {}
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return {"evidence": words.say(text, 2000)}
    return {words.say(name, 40): words.tell(value) for name, value in [*found.items()][:_FIELDS]}


def _table(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    present = [(name, value) for name, value in sorted(values.items()) if value is not None]
    rows = [(words.say(name, 80), words.tell(value)) for name, value in present[:_FIELDS]]
    return rows + ([("…", f"{len(present) - _FIELDS} more")] if len(present) > _FIELDS else [])
