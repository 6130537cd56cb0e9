"""Sentences of the journal about holds."""

from __future__ import annotations

from collections.abc import Callable

from celery_poison.desk.sentences import Entry, act_sentence, note_of

SENTENCES: dict[str, Callable[[Entry], str]] = {
    "paused": lambda entry: act_sentence("paused", entry),
    "resumed": lambda entry: act_sentence("resumed", entry),
    "endpoint_suspended": lambda entry: (
        f"worker {entry['worker']} suspended itself from queue {entry['queue']}{note_of(entry)}"
    ),
    "endpoint_resumed": lambda entry: (
        f"worker {entry['worker']} resumed queue {entry['queue']}"
        f" by {entry['actor'] or 'itself'}{note_of(entry)}"
    ),
}
