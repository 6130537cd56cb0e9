"""What a monitor asks between two rounds: whether anything has changed since the last (EMS-2).

One exchange of one or two commands, for a thousand workers as for one. Where it shows nothing new, a round
would have found nothing to do; who has come since then, the next round sees.
"""

from __future__ import annotations

import random
import time

from celery_poison.basics.text import decoded
from celery_poison.ledger import Ledger
from celery_poison.ledger.cluster import ask_subscribers
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.fleet import Fleet

#: Seconds between two glances of the active monitor, and between two of all standbys of a small fleet.
GLANCE, STANDBY_GLANCE = 0.4, 0.5
#: Workers whose standbys look as often as one; those of more workers share that.
CLOSE = 2
#: At each glance a standby counts connections; at one of so many it asks for the lock itself, too.
SELDOM = 4


class Glances:
    """The fleet as the last round saw it, and whether that still holds.

    Args:
        longest: seconds between two glances at most.
    """

    def __init__(self, ledger: Ledger, longest: float) -> None:
        self._ledger = ledger
        self._longest = longest
        self._fleet: Fleet | None = None
        #: When the last round had its answer, by the monotonic clock.
        self._answered_at = 0.0
        self._holder = ""
        self._pause, self._looks = STANDBY_GLANCE, 0

    def saw(self, fleet: Fleet | None) -> bool:
        """Note what a round saw (None: it could not look); return whether a worker has come or left since."""
        before, self._fleet, self._answered_at = self._fleet, fleet, time.monotonic()
        return not (before and fleet) or (before.leases, before.channels) != (fleet.leases, fleet.channels)

    def is_all_as_before(self) -> int | None:
        """Return when all workers were connected that the last round saw so, in ms of Redis' clock, at least.

        None: one is not, or a message was parked, or is to leave quarantine: a round is due.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        fleet, asked_at, keys = self._fleet, time.monotonic(), self._ledger.keys
        if fleet is None:
            return None
        with clear_errors("asking what has changed"):
            pipe = self._ledger.client.pipeline(transaction=False)
            pipe.exists(keys.parcels, keys.outgoing, keys.open)
            if fleet.channels:
                ask_subscribers(pipe, *fleet.channels)
            work, *connected = pipe.execute()
        if work != fleet.kinds_of_work or not all(number for rows in connected for _, number in rows):
            return None
        return fleet.at_ms + int(1000 * (asked_at - self._answered_at))

    # --- of a standby ------------------------------------------------------------------------------

    def is_held(self) -> bool:
        """Note who holds the monitor's lock; return whether it may be left to it for now.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        keys, self._holder = self._ledger.keys, ""
        with clear_errors("asking who is the active monitor"):
            pipe = self._ledger.client.pipeline(transaction=False)
            pipe.get(keys.monitor)
            pipe.zcard(keys.leases)
            holder, workers = pipe.execute()
            if holder is None:
                return False
            pipe.hget(keys.presence, holder)
            ask_subscribers(pipe, keys.channel(decoded(holder)))
            presence, ((_, connected),) = pipe.execute()
        self._share(workers)
        # Whose connections cannot be counted is left alone until its lock runs out.
        self._holder = decoded(holder) if presence else ""
        return bool(connected) or not presence

    def is_held_still(self) -> bool:
        """Whether the lock is taken still, by who is connected; by one to three small commands.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        keys, number = self._ledger.keys, self._looks
        self._looks += 1
        with clear_errors("asking whether there is an active monitor"):
            pipe = self._ledger.client.pipeline(transaction=False)
            if asks_for_lock := not self._holder or number % SELDOM == 0:
                pipe.exists(keys.monitor)
                pipe.zcard(keys.leases)
            if self._holder:
                ask_subscribers(pipe, keys.channel(self._holder))
            replies = pipe.execute()
        is_held = bool(replies.pop(0)) if asks_for_lock else True
        if asks_for_lock:
            self._share(replies.pop(0))
        return is_held and all(connected for rows in replies for _, connected in rows)

    def _share(self, workers: int) -> None:
        """Look as often as is this one's part among so many."""
        self._pause = min(STANDBY_GLANCE * max(1.0, workers / CLOSE), self._longest)

    @property
    def standby_pause(self) -> float:
        """Seconds until the next glance of a standby: no two of them look at the same moment."""
        return min(self._longest, self._pause * random.uniform(0.5, 1.5))
