"""Handlers on every signal of the plugin, which leave a mark for the test to see."""

from __future__ import annotations

from typing import Any

from celery.utils.dispatch import Signal

from celery_poison import signals
from tests.apps.marks import Marks

SIGNALS: dict[str, Any] = {name: each for name, each in vars(signals).items() if type(each) is Signal}


def hear_all(marks: Any) -> None:
    """Connect a handler to every signal in this process.

    Args:
        marks: returns where to leave the marks.
    """
    for name, signal in SIGNALS.items():

        def hear(signal: Any = None, sender: Any = None, name: str = name, **told: Any) -> None:
            marks().leave("signal", name, "sent", told)

        signal.connect(hear, weak=False)


def heard(marks: Marks, name: str) -> list[dict[str, Any]]:
    """What the handlers of one signal were given, in order."""
    return [mark.n for mark in marks.all("signal", "sent") if mark.id == name]
