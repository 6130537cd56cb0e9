"""A worker's portrait of itself, in each heartbeat, and what it means: alive is not working (NEW-25).

A heartbeat comes from a thread of its own. It says that a process lives, and nothing of its work: the event
loop may stand, no pool process may come up, every slot may be taken by a task that never ends. Whether a
worker works is judged here, and nowhere else.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from celery_poison.basics.text import duration
from celery_poison.model import Record

#: What lets RabbitMQ wait, and no worker: Celery's words for it.
LET_IT_DELAY = (
    'set task_default_queue_type="quorum" and task_default_exchange_type="topic", for new queues:'
    " RabbitMQ itself delays messages then"
)


class Condition(StrEnum):
    """The condition of a worker, by the word that every command and metric uses."""

    WORKING = "working"
    STUCK_LOOP = "stuck loop"
    """Its event loop stands: it receives, acknowledges and starts nothing."""
    STUCK_SLOTS = "stuck slots"
    """Each slot is taken by a task that is far past its time limit."""
    NO_CHILDREN = "no children"
    """No process of its pool comes up."""
    NO_BROKER = "no broker"
    """It has lost its broker, and does not get it back."""
    DEAF = "deaf"
    """It consumes nothing, while messages wait for it."""
    STOPPING = "stopping"
    SILENT = "silent"
    """Its heartbeat is late."""
    FROZEN = "frozen"
    """It was silent for so long that it was taken for dead, and is connected still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portrait(Record):
    """A worker's view of itself, as of one heartbeat; times in seconds.

    Attributes:
        patience: what ``poison_stuck_after`` says there.
        loop_turned_ago: since its event loop last turned; None: it has not begun to, or has no broker.
        tasks_stop_loop: its tasks run on the event loop, which stands meanwhile (solo), or waits for one of
            them to end (greenlets).
        unanswered: for how long its broker, which should answer within a second, has owed it an answer; 0:
            it owes none.
        broker_away: for how long it has had no connection to its broker; None: it has one.
        children, children_expected: pool processes that are up, and that should be.
        childless: for how long none has come up, and no task has begun, beyond Celery's own patience; 0 where
            a pool has none.
        slots, slots_busy: of the pool.
        slots_past: taken by a task that has run for twice its time limit, and ``patience`` beyond it.
        oldest_waiting: for how long the oldest message that is held here has not begun.
        delayed: messages that wait here for a time of their own, where they take the places of others;
        queues_filled: from how many queues it takes nothing more for that.
    """

    patience: float = 30.0
    loop_turned_ago: float | None = None
    tasks_stop_loop: bool = False
    unanswered: float = 0.0
    broker_away: float | None = None
    children: int = 0
    children_expected: int = 0
    childless: float = 0.0
    slots: int = 0
    slots_busy: int = 0
    slots_past: int = 0
    oldest_waiting: float = 0.0
    delayed: int = 0
    queues_filled: int = 0

    def encode(self) -> str:
        """Return the portrait as JSON, for one field of a heartbeat."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Portrait | None:
        """Return the decoded portrait, perhaps of another version; None for any other text."""
        try:
            raw = json.loads(text) if text else None
        except (ValueError, RecursionError):
            return None
        if not isinstance(raw, dict):
            return None
        names = {each.name for each in fields(cls)}
        numbers: dict[str, Any] = {n: v for n, v in raw.items() if n in names and isinstance(v, int | float)}
        return cls(**numbers)


#: What a worker is that lives, and does not work for a reason of its own.
STUCK = (
    Condition.STUCK_LOOP,
    Condition.STUCK_SLOTS,
    Condition.NO_CHILDREN,
    Condition.NO_BROKER,
    Condition.FROZEN,
)


def judge(
    portrait: Portrait | None, *, is_alive: bool = True, is_stopping: bool = False, is_deaf: bool = False
) -> Condition:
    """Return the condition of a worker.

    Its event loop is not judged before it has turned once.

    Args:
        portrait: of its last heartbeat; None: it draws none, as an older version does.
        is_alive: that heartbeat is fresh.
        is_deaf: see :mod:`celery_poison.desk.queues`.
    """
    if not is_alive:
        return Condition.SILENT
    if is_stopping:
        return Condition.STOPPING
    if portrait is not None and (trouble := _trouble(portrait)) is not None:
        return trouble
    return Condition.DEAF if is_deaf else Condition.WORKING


def _trouble(seen: Portrait) -> Condition | None:
    is_in_task = seen.tasks_stop_loop and seen.slots_busy
    if max(seen.loop_turned_ago or 0.0, seen.unanswered) > seen.patience and not is_in_task:
        return Condition.STUCK_LOOP
    if 0 < seen.slots <= seen.slots_past:
        return Condition.STUCK_SLOTS
    if (seen.broker_away or 0.0) > seen.patience:
        return Condition.NO_BROKER
    is_wanted = seen.children_expected or seen.oldest_waiting > seen.patience  # else scaled to none for now
    if is_wanted and not seen.children and seen.childless > seen.patience:
        return Condition.NO_CHILDREN
    return None


def explain(seen: Portrait, condition: Condition) -> str:
    """Return the meaning of one of ``STUCK``, and its cure, as the rest of a sentence about a worker."""
    match condition:
        case Condition.STUCK_LOOP:
            stood = seen.loop_turned_ago or 0.0
            why = f"its event loop has stood for {duration(stood)}"
            if stood <= seen.patience:  # it is about to stand: at the next word that its broker must hear
                why = f"its broker has not answered for {duration(seen.unanswered)}"
            return f"{why}: it begins and acknowledges nothing; cure: restart it"
        case Condition.STUCK_SLOTS:
            slots = f"{seen.slots_past} of its {seen.slots} slots"
            return f"{slots} are taken by tasks far past their time limit; cure: restart it"
        case Condition.NO_BROKER:
            away = duration(seen.broker_away or 0.0)
            return f"it has had no connection to its broker for {away}; cure: the broker, or the network"
        case Condition.NO_CHILDREN:
            missed = duration(seen.childless)
            if not seen.children_expected:
                return f"its pool was shrunk to nothing {missed} ago; cure: control pool_grow, or restart it"
            return f"no pool process has come up for {missed}; cure: see its log, and worker_process_init"
    return ""
