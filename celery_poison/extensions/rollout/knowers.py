"""Decides about a message whose task its worker does not know: facts in, a decision out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from celery_poison.basics.parts import Postponed
from celery_poison.basics.text import count_of, duration, some_of
from celery_poison.ledger.fleet_model import WorkerRecord

#: Seconds of the first pause and of the longest, and the share of its wait so far that another one takes.
FIRST, LONGEST, SHARE = 0.5, 30.0, 0.5
#: Workers that are named.
NAMED = 3


class Knowers(NamedTuple):
    """The living workers, as to one task and one queue.

    Attributes:
        here: nodes that know the task and consume the queue.
        away: nodes that know it and do not consume that.
        lacking: how many consume the queue and do not know the task;
        silent: or do not say what they know.
    """

    here: tuple[str, ...] = ()
    away: tuple[str, ...] = ()
    lacking: int = 0
    silent: int = 0


def sort_out(workers: Iterable[tuple[WorkerRecord, str]], digests: Collection[str], queue: str) -> Knowers:
    """Sort workers, each with its digest of names, by whether they know the task of these digests."""
    here, away, others = list[str](), list[str](), list[str]()
    for worker, digest in workers:
        consumes = queue in worker.all_queues
        if digest in digests:
            (here if consumes else away).append(worker.node)
        elif consumes:
            others.append(digest)
    silent = others.count("")
    return Knowers(tuple(here), tuple(away), len(others) - silent, silent)


def decide(knowers: Knowers, queue: str, waited: float, patience: float) -> Postponed:
    """Decide whether the message goes back for who knows its task, or to quarantine.

    Args:
        waited: seconds since a worker first did not know it; each pause grows with that.
        patience: seconds after which it waits no longer.
    """
    here, away = some_of(knowers.here, NAMED), some_of(knowers.away, NAMED)
    if here and waited < patience:
        pause = min(max(FIRST, SHARE * waited), LONGEST)
        return Postponed(pause, f"until a worker takes it that knows its task: {here}")
    if here:
        return Postponed(0, f"; known to {here}, where it has not arrived in {duration(waited)}")
    if away:
        return Postponed(0, f"; known to {away}, where {queue} is not consumed")
    if knowers.silent:
        return Postponed(0, f"; {count_of(knowers.silent, 'worker')} of {queue} did not say what they know")
    return Postponed(0, "")
