"""The plan of a task: what is asked about each of its messages in one worker, decided beforehand.

A plan is made at the first message of its task. Whatever changes one (a policy, a rule of the block list, a
pause, a Redis that may have forgotten something) changes first, and then has all of them made anew: so no
plan outlives what it was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from celery_poison.basics.parts import Hold
from celery_poison.policy import Policy


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The plan of one task.

    Attributes:
        policy: of queues that have none of their own.
        diverts: its messages are still the broker's when it dies.
        is_paused: they are parked.
        is_asked: a hold is asked about each of them.
        is_blockable: a rule of the block list may be about them.
        is_looked_into: a hold looks at what each of them is about.
        is_suspected: even a first delivery may be a copy (:mod:`.resync`).
        holds: are asked about each of its requests, and told of its runs.
        is_open: a first delivery that is plain JSON is let in at sight.
    """

    policy: Policy
    diverts: bool
    is_paused: bool
    is_asked: bool
    is_blockable: bool
    is_looked_into: bool
    is_suspected: bool
    holds: Sequence[Hold]
    is_open: bool

    @classmethod
    def of(
        cls,
        task: str,
        entry: tuple[Policy, bool],
        holds: Sequence[Hold],
        *,
        is_blockable: bool,
        is_suspected: bool,
    ) -> Self:
        """Make the plan of a task; ``entry``: its policy, and whether it diverts."""
        policy, diverts = entry
        is_paused = any(hold.parks(task) for hold in holds)
        is_asked = diverts and any(hold.asks(task) for hold in holds)
        is_looked_into = any(hold.looks_into(task) for hold in holds)
        sizes = (each.max_payload_bytes for each in (policy, *policy.by_queue.values()))
        has_limit = any(size is not None for size in sizes)
        looks = is_paused, is_asked, is_blockable, is_looked_into, is_suspected
        awake = tuple(hold for hold in holds if not hold.is_at_rest)
        return cls(policy, diverts, *looks, awake, not (any(looks) or has_limit))


class Plans:
    """The plans of one worker; any thread may have them made anew.

    Attributes:
        known: task name -> plan; only the event loop adds to it.
    """

    def __init__(self) -> None:
        self.known: dict[str, Plan] = {}

    def renew(self) -> None:
        """Forget them all, now that something has changed."""
        self.known = {}

    def of(
        self,
        task: Any,
        policies: Mapping[str, tuple[Policy, bool]],
        holds: Sequence[Hold],
        is_blockable: Callable[[str], bool],
        *,
        window: Any,
    ) -> Plan | None:
        """Return the plan of a task, made now if need be; None: it is not guarded.

        Args:
            task: its name, or anything that a publisher has put in the place of one.
            is_blockable: whether some rule may be about a task.
            window: says whether the ledger's Redis may have forgotten something (``is_suspected``).
        """
        known = (
            self.known
        )  # what is made while all are forgotten is forgotten with them; asked before the window
        is_suspected = window.is_suspected
        plan = known.get(task)
        if plan is not None and plan.is_suspected is is_suspected:
            return plan
        entry = policies.get(task)
        if entry is None:
            return None
        plan = known[task] = Plan.of(
            task, entry, holds, is_blockable=is_blockable(task), is_suspected=is_suspected
        )
        return plan
