"""The panel of messages whose task some workers of their queue do not know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from celery_poison import causes
from celery_poison.basics.parts import Panel
from celery_poison.basics.text import argument, count_of, some_of
from celery_poison.extensions.rollout.knowers import NAMED
from celery_poison.extensions.rollout.task_names import TaskNames
from celery_poison.ledger import Ledger
from celery_poison.ledger.groups import GroupKind

#: Groups of messages in quarantine that are looked at.
_GROUPS = 100
_FILTER = f"cause={causes.UNKNOWN_TASK} task="


class _TaskMessages(NamedTuple):
    """Messages of one task, and who knows that."""

    task: str
    queue: str
    messages: int
    known_to: tuple[str, ...]

    @property
    def story(self) -> str:
        return f"{count_of(self.messages, 'message')} of {self.task}"

    @property
    def waits(self) -> str:
        return f"{self.story} {'waits' if self.messages == 1 else 'wait'} for {self.knowers}"

    @property
    def knowers(self) -> str:
        return some_of(self.known_to, NAMED)


def panel_of(ledger: Ledger, names: TaskNames) -> Panel:
    """Return the messages that wait for who knows their task, and those in quarantine that may run now."""
    waiting = [*_waiting(ledger, names)]
    now_known = [*_in_quarantine(ledger, names)]
    return Panel(
        "rollout",
        waiting,
        as_json=[row._asdict() for row in waiting],
        line="; ".join(row.waits for row in waiting),
        decisions=[f"{row.story} in quarantine: {row.knowers} knows the task by now" for row in now_known],
        typed=[f"poison release --filter {argument(_FILTER + row.task)}" for row in now_known],
    )


def _waiting(ledger: Ledger, names: TaskNames) -> Iterator[_TaskMessages]:
    parked = dict(ledger.read.parked_now())
    _, times = ledger.read.awaited_by(parked) if parked else ({}, {})
    starts = (parked[mid].start for mid in times)
    for (task, queue), number in Counter((start.task, start.queue) for start in starts).items():
        knowers = names.who_knows(task, queue)
        if knowers.here and knowers.lacking:
            yield _TaskMessages(task, queue, number, knowers.here)


def _in_quarantine(ledger: Ledger, names: TaskNames) -> Iterator[_TaskMessages]:
    for group in ledger.read.alike(GroupKind.QUEUE, _GROUPS).groups:
        if group.cause == causes.UNKNOWN_TASK and group.task:
            knowers = names.who_knows(group.task, group.queue)
            if knowers.here:
                yield _TaskMessages(group.task, group.queue, group.messages, knowers.here)
