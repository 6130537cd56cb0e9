"""One message's page: what is on record, its attempts, what else happened, and the message itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from celery_poison.basics.numbers import is_whole
from celery_poison.basics.text import size
from celery_poison.causes import is_users
from celery_poison.desk import Quarantine, sentences
from celery_poison.desk.advice import decision
from celery_poison.desk.own_deaths import place_of
from celery_poison.errors import LedgerUnavailable, MessageNotFound
from celery_poison.flower import changing, words
from celery_poison.flower.async_ledger import AsyncLedger
from celery_poison.flower.extension_parts import union
from celery_poison.keep.arguments import headers_shown
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.rules.failures import KeptFailure
from celery_poison.states import State

#: Seconds that a page waits for a message and its part of the journal.
MESSAGE_TIMEOUT = 4.0
#: Entries of a history, headers and properties that are shown at most.
_ENTRIES, _FIELDS = 500, 100
#: Headers that repeat the arguments.
_ARGUMENTS = ("argsrepr", "kwargsrepr")
#: What people decide about a message.
_DECISIONS = ("released", "failed", "discarded", "edited", "copied", "restored", "purged")


class JournalStep(NamedTuple):
    """One line of a message's life, ready to be shown.

    Attributes:
        kind: the journal's word for it; colours it.
        known: name -> value, of what else the journal knows, and of what a death left behind.
    """

    at: float
    kind: str
    sentence: str
    known: dict[str, str]


class MessageStory(NamedTuple):
    """The content of the page, worded.

    Attributes:
        place: where the user's code was at its last death that tells.
        others: what became of other messages of its task meanwhile, and what that suggests.
        usual: what is usually decided; empty: it is not in quarantine, or there is nothing usual.
        steps: the newest of its life; ``left_out`` earlier ones are not shown.
        decisions: those that people took.
        raised: what its attempts raised, if it is kept for that: title -> rows; of the traceback from the
            user's code on.
        above: lines of the traceback before the user's code: Celery's.
        stack: where its code was when it died, the innermost call first, down to where the user's code was
            entered: each call, and whether it is the user's.
        below: the calls of Celery and of the worker.
        pictures: title -> SVG of what extensions know of its death.
        can_edit: whether a changed copy can be made; ``can_block``: whether others like it can be blocked.
        headers: those of the message, but for two that repeat the arguments, with what is hidden of them.
        links: name -> URL, to logs and the like.
    """

    record: MessageRecord
    stored: StoredMessage | None
    standing: str
    why: str
    place: str
    others: str
    usual: str
    steps: list[JournalStep]
    left_out: int
    decisions: list[JournalStep]
    raised: list[tuple[str, list[tuple[str, str]]]]
    above: list[str]
    stack: list[tuple[str, bool]]
    below: list[str]
    pictures: dict[str, str]
    can_edit: bool
    can_block: bool
    headers: list[tuple[str, str]]
    properties: list[tuple[str, str]]
    links: Mapping[str, str]


async def read_story(ledger: AsyncLedger, id: str, *, names_only: bool = False) -> MessageStory:
    """Return the story of a message, by mid or task id.

    Args:
        names_only: of headers and properties; their values are for those whose name is known.

    Raises:
        MessageNotFound: it is not known.
        AmbiguousId: several messages have this task id.
        LedgerUnavailable: Redis does not answer.
    """
    try:
        return await ledger.ask(lambda: _read(ledger.quarantine, id, names_only), MESSAGE_TIMEOUT)
    except UnicodeError:
        raise MessageNotFound(f"no message {words.say(id)!r}") from None
    except TimeoutError:
        raise LedgerUnavailable("its part of the journal was not read in time") from None


def _read(quarantine: Quarantine, id: str, names_only: bool) -> MessageStory:
    detail = quarantine.detail(id)
    record, stored = detail.record, detail.stored
    left_out = max(0, len(detail.history) - _ENTRIES)
    steps = [_step(entry) for entry in detail.history[left_out:]]
    frames = [words.say(frame, 400) for frame in record.evidence.stack]
    called = [(frame, is_users(frame)) for frame in frames]
    entry = max((number for number, (_, own) in enumerate(called, 1) if own), default=len(called))
    headers = {name: value for name, value in detail.headers.items() if name not in _ARGUMENTS}
    properties = detail.properties
    if names_only:
        headers, properties = headers_shown(True, headers), headers_shown(True, properties)
    above, failure = _folded(detail.failure)
    drawers = union(lambda part: part.pictures)
    return MessageStory(
        record=record,
        stored=stored,
        standing=sentences.standing(record),
        why=words.say(detail.story, 2000),
        place=words.say(place_of(detail.deaths, record.evidence)),
        others=words.say(detail.others.sentence, 1000) if detail.others else "",
        usual=words.say(decision(detail)) if record.state == State.NDLV and not record.sent_at else "",
        steps=steps,
        left_out=left_out,
        decisions=[step for step in steps if step.kind in _DECISIONS],
        raised=[
            (title, [(words.say(name), words.say(text, 1000)) for name, text in rows])
            for title, rows in sentences.failure_rows(failure)
            if rows
        ],
        above=[words.say(line, 1000) for line in above],
        stack=called[:entry],
        below=frames[entry:],
        pictures={title: svg for title, draw in drawers.items() if (svg := draw(record.evidence))},
        can_edit=changing.can_edit(record, stored),
        can_block=changing.can_block(record),
        headers=_table(headers),
        properties=_table(properties),
        links=detail.links,
    )


def _folded(failure: KeptFailure | None) -> tuple[list[str], KeptFailure | None]:
    """Return the lines of its traceback before the user's code, and the failure without them.

    Nothing is taken away where no line is the user's.
    """
    lines = failure.traceback.splitlines() if failure else []
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    own = next((number for number in frames if is_users(lines[number])), None)
    if failure is None or own is None:
        return [], failure
    first = frames[0]
    kept = failure._replace(traceback="\n".join([*lines[:first], *lines[own:]]))
    return lines[first:own], kept


def _step(entry: Mapping[str, str]) -> JournalStep:
    """Word an entry; ``memory_kb`` and ``release`` came with schema 2 of the journal."""
    kind, memory = entry.get("event", "?"), entry.get("memory_kb", "")
    known = {
        "start": entry.get("deliveries", ""),
        "process": entry.get("pid", "").removeprefix("0"),
        "memory": size(int(memory) * 1024) if is_whole(memory) else "",
        "version": entry.get("release", ""),
        "incident": entry.get("incident", ""),
    }
    shown = {name: words.say(value) for name, value in known.items() if value}
    shown |= _evidence(entry.get("evidence", ""))
    return JournalStep(
        words.at(entry), words.say(kind, 40), words.say(sentences.sentence(entry), 1000), shown
    )


def _evidence(text: str) -> dict[str, str]:
    """Return the evidence of a death; a stack as people read it, with a line for each call."""
    try:
        evidence: Any = json.loads(text or "{}")
    except (ValueError, RecursionError):
        evidence = None
    if not isinstance(evidence, dict):
        return {"evidence": words.say(text, 2000)}
    return {
        words.say(name, 40): "\n".join(map(words.say, value))
        if isinstance(value, list)
        else words.tell(value)
        for name, value in [*evidence.items()][:_FIELDS]
    }


def _table(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    present = [(name, value) for name, value in sorted(values.items()) if value is not None]
    rows = [(words.say(name, 80), words.tell(value)) for name, value in present[:_FIELDS]]
    return rows + ([("…", f"{len(present) - _FIELDS} more")] if len(present) > _FIELDS else [])
