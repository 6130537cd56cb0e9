"""Queues that no worker consumes since they are paused."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from celery_poison.basics.text import count_of, some_of, when
from celery_poison.desk.queues import Unread, waiting_in
from celery_poison.extensions.holds.pauses import Pause, Scope
from celery_poison.ledger import Ledger
from celery_poison.ledger.fleet_model import consumed_queues


@dataclass(frozen=True, slots=True)
class Unconsumed:
    """A queue that no living worker consumes because of a pause, while messages wait in it."""

    queue: str
    waiting: int
    story: str


def resume_of(queue: str) -> str:
    """Return the command that lets a queue be consumed again."""
    return f"poison resume --queue {shlex.quote(queue)}"


def find_unconsumed(host: Any, ledger: Ledger, pauses: Iterable[Pause]) -> tuple[list[Unconsumed], list[str]]:
    """Return which paused queues no worker consumes while messages wait, and why that is unknown, if it is.

    A worker that has suspended itself from its queue may have been the only one (WAS-6). Asks the broker
    only about such queues.

    Args:
        host: the plugin of the app.
    """
    paused = {pause.name: pause for pause in pauses if pause.scope in (Scope.QUEUE, Scope.ENDPOINT)}
    if not paused:
        return [], []
    consumed = consumed_queues(ledger.read.workers(int(host.settings.activation_interval * 1000)))
    idle = {name: pause for name, pause in paused.items() if name not in consumed}
    try:
        waiting = waiting_in(host.app, idle)
    except Unread as error:
        return [], [f"{error}: whether messages wait in {some_of(idle)} is not known"]
    unconsumed = []
    for name, pause in idle.items():
        if number := waiting.get(name):
            by = pause.actor or f"{pause.worker} itself"
            over = f" until {when(pause.until)}" if pause.until else ""
            note = f" ({pause.note})" if pause.note else ""
            wait = f"{count_of(number, 'message')} wait{'s' if number == 1 else ''}"
            story = f"queue {name} is paused by {by}{over}{note}, and {wait}"
            unconsumed.append(Unconsumed(name, number, story))
    return unconsumed, []
