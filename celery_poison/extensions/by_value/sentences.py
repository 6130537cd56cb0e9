"""Sentences of the journal about holds by value."""

from __future__ import annotations

from collections.abc import Callable

from celery_poison.desk.sentences import Entry, act_sentence

SENTENCES: dict[str, Callable[[Entry], str]] = {
    "hold_added": lambda entry: act_sentence("held", entry),
    "hold_lifted": lambda entry: act_sentence("lifted", entry),
}
