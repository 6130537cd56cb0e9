"""Decides about a message whose task its worker does not know: facts in, a decision out."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from celery_poison.basics.parts import Postponed
from celery_poison.basics.text import count_of, duration, some_of
from celery_poison.ledger.fleet_model import WorkerRecord

#: Seconds of the first pause and of the longest, and the share of its wait so far that another one takes.
FIRST, LONGEST, SHARE = 0.5, 30.0, 0.5
#: Seconds of the longest where a worker that knows the task has a free slot: it gets it soon, or is full.
LONGEST_IDLE = 2.0
#: Workers that are named.
NAMED = 3


class Knowers(NamedTuple):
    """The living workers, as to one task and one queue.

    Attributes:
        here: nodes that know the task and consume the queue.
        away: nodes that know it and do not consume that.
        lacking: how many consume the queue and do not know the task;
        silent: or do not say what they know.
        is_idle: one of ``here`` has a free slot.
        left: where ``here`` is empty, nodes that were there; left_ago: seconds since the last of them ended.
    """

    here: tuple[str, ...] = ()
    away: tuple[str, ...] = ()
    lacking: int = 0
    silent: int = 0
    is_idle: bool = False
    left: tuple[str, ...] = ()
    left_ago: float = math.inf


def sort_out(workers: Iterable[tuple[WorkerRecord, str]], digests: Collection[str], queue: str) -> Knowers:
    """Sort workers, each with its digest of names, by whether they know the task of these digests."""
    here, away, others, is_idle = list[str](), list[str](), list[str](), False
    for worker, digest in workers:
        consumes = queue in worker.all_queues
        if digest in digests:
            (here if consumes else away).append(worker.node)
            is_idle = is_idle or (queue in worker.consumed and _has_room(worker))
        elif consumes:
            others.append(digest)
    silent = others.count("")
    return Knowers(tuple(here), tuple(away), len(others) - silent, silent, is_idle)


def _has_room(worker: WorkerRecord) -> bool:
    return worker.portrait is not None and worker.portrait.slots_busy < worker.portrait.slots


def decide(
    knowers: Knowers, queue: str, waited: float, patience: float, grace: float = 0.0, luck: float = 1.0
) -> Postponed:
    """Decide whether the message goes back for who knows its task, or to quarantine.

    Args:
        waited: seconds since a worker first did not know it; each pause grows with that.
        patience: seconds after which it waits no longer.
        grace: seconds for which who knew it may be gone, as in a restart.
        luck: from 0 to 1, for half of the pause to all of it. Equal pauses would keep step with the workers'
            polls of a Redis broker, and bring a message to the same worker each time.
    """
    here, away, left = (some_of(nodes, NAMED) for nodes in (knowers.here, knowers.away, knowers.left))
    if waited < patience and (here or knowers.left_ago < grace):
        pause = min(max(FIRST, SHARE * waited), LONGEST_IDLE if knowers.is_idle else LONGEST)
        pause *= (1 + luck) / 2
        waits = f"takes it that knows its task: {here}" if here else f"is back that knew its task: {left}"
        return Postponed(pause, f"until a worker {waits}")
    if here:
        return Postponed(0, f"; known to {here}, where it has not arrived in {duration(waited)}")
    if away:
        return Postponed(0, f"; known to {away}, where {queue} is not consumed")
    if left:
        ago = f" for {duration(knowers.left_ago)}" if math.isfinite(knowers.left_ago) else ""
        return Postponed(0, f"; known to {left}, gone{ago}")
    if knowers.silent:
        return Postponed(0, f"; {count_of(knowers.silent, 'worker')} of {queue} did not say what they know")
    return Postponed(0, "")
