"""Which messages nobody works on: a pure function of what a message is, for how long, and whose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Where a message is on record that does not run."""

    CANDIDATE = "candidate"
    PARKED = "parked"
    UNACKED = "unacked"
    """On a Redis broker: received, and not acknowledged. Other brokers keep that to themselves."""


#: Activation intervals. A dead worker is declared dead after one; what it held is back in another.
RECOVERED = 3
#: Whoever is put back is the first in line, and looked at alone if need be.
RUN_AGAIN = 30
#: A worker that lives may have other suspects to try first, one after the other.
TRIED = 360
#: Seconds by which kombu may be late with a visibility timeout: it looks now and then, while it receives.
SWEPT = 300.0


def is_stuck(
    kind: Kind, age: float, owner_lives: bool | None, *, activation: float, visibility: float = math.inf
) -> bool:
    """Return whether nobody works on a message that should have gone on by now.

    Args:
        age: seconds since it was last heard of: flagged or put back, parked, received or renewed; and since
            its owner was heard last, if that is gone.
        owner_lives: whether the worker lives that holds it; of a parked message, that runs its earlier start.
            None: there is none, or the ledger does not know it, as one without this plugin.
        activation: ``poison_activation_interval``, in seconds.
        visibility: the broker's visibility timeout, in seconds.
    """
    match kind, owner_lives:
        case Kind.CANDIDATE, None:
            return age > RUN_AGAIN * activation
        case Kind.CANDIDATE, True:
            return age > TRIED * activation
        case Kind.PARKED, True:
            return False
        case Kind.UNACKED, None:
            return age > visibility + SWEPT
        case _:  # its worker is gone; or it lives, and does not renew what it has forgotten
            return age > RECOVERED * activation


@dataclass(frozen=True, slots=True)
class Stuck:
    """One message that nobody works on.

    Attributes:
        id: its task id; a delivery tag where that cannot be read.
        since: seconds since 1970, and
        age: seconds for which it has been so.
        why: what is known about it, and
        cure: what to do, as sentences.
    """

    kind: Kind
    id: str
    queue: str
    since: float
    age: float
    why: str
    cure: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Stranded:
    """All messages that nobody works on.

    Attributes:
        counts: by kind; without ``unacked`` where the broker is not Redis, or cannot be read.
        oldest: at most 20 of them, the oldest first.
        unread: why the broker could not be read; empty if it could, or need not be.
    """

    counts: Mapping[Kind, int]
    oldest: list[Stuck]
    unread: str = ""

    @property
    def total(self) -> int:
        return sum(self.counts.values())
