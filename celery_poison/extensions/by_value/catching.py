"""Catches in a worker what falls under a hold by value.

It fails open: a message that cannot be read, and one that is caught while the ledger is away, begins; that is
logged once and counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.basics.parts import Caught, Hold
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.extensions.by_value.conditions import Check, call_of
from celery_poison.extensions.by_value.value_holds import ValueHold, ValueHolds, Work
from celery_poison.keep.arguments import is_readable
from celery_poison.worker.site import Site

logger = get_logger("celery_poison")

#: Seconds after which a worker says what its holds have done, if nothing else makes it.
SAID_EVERY = 30.0


class Catching(Hold):
    """The holds by value as one worker knows them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._holds = ValueHolds(site.ledger)
        self._copy = self._holds.copy(site.complain)
        self.follows = self._holds.key
        #: What is in force, by number, and the checks of each task; both are replaced as wholes.
        self._in_force: Mapping[int, ValueHold] = {}
        #: Redis' clock, less this process's; and when the next hold is over.
        self._clock, self._ends_at = 0.0, math.inf
        self._checks: dict[str, tuple[Check, ...]] = {}
        self._is_waiting = False
        self._looks = self._nanoseconds = self._let_go = 0
        self._said_at = time.monotonic()

    @property
    def is_at_rest(self) -> bool:  # type: ignore[override]
        return not self._is_waiting

    def looks_into(self, task: str) -> bool:
        return bool(self._in_force) and bool(self._checks_of(task))

    def _checks_of(self, task: str) -> tuple[Check, ...]:
        known = self._checks
        if (checks := known.get(task)) is None:
            holds = self._in_force.values()
            bound = (hold.check(self._site.app, task) for hold in holds)
            checks = known[task] = tuple(check for check in bound if check is not None)
        return checks

    # --- what a message is about ---------------------------------------------------------------

    def catch(self, message: Any, task: str, *, as_of_now: bool = False) -> Caught | None:
        if as_of_now:
            self._refresh()
        elif getattr(message, "held_against", None) == self.version:
            return None
        number = self._find(message, task)
        hold = self._in_force.get(number)
        if hold is None or hold.is_over(time.monotonic() + self._clock):
            return None
        waits = hold.waits and is_readable(message)  # what is packed was opened, and cannot go back for that
        return Caught(causes.HELD, hold.story, self._holds.key_of(hold) if waits else "")

    def _find(self, message: Any, task: str) -> int:
        """Return the number of the hold that a message falls under; 0: of none."""
        is_open = is_readable(message) or getattr(message, "poison", None) is not None
        if not is_open or getattr(message, "sealed", False):
            return 0  # it is asked about again once it is open
        number, version = 0, self.version  # another thread may raise it meanwhile
        try:
            payload = message.payload  # which Celery decodes anyway, and only once
            began = time.perf_counter_ns()
            if (call := call_of(payload)) is None:
                raise ValueError("its body holds no arguments")
            number = next((each.number for each in self._checks_of(task) if each.holds(*call)), 0)
            self._looks += 1
            self._nanoseconds += time.perf_counter_ns() - began
        except Exception as error:  # whatever a publisher has sent
            self._let_go += 1
            why = f"a message of {task} cannot be read and is held by no value: {type(error).__name__}"
            self._site.complain(ConfigurationError(why))
        if not number:
            message.held_against = version
        return number

    def let_go(self, message: Any) -> None:
        message.held_against = self.version
        self._let_go += 1
        self._site.complain(ConfigurationError("messages run past the holds by value while Redis is away"))

    def stops(self, queue: str, task: str, request: Any) -> bool:
        delivery = request.poison
        if not self._is_waiting or (delivery is not None and delivery.released) or not self.looks_into(task):
            return False
        caught = self.catch(request.message, task)
        return caught is not None and bool(caught.awaits)

    # --- in the background thread --------------------------------------------------------------

    def refresh(self, *, is_up: bool) -> None:
        if is_up:
            self._refresh()
        if time.monotonic() + self._clock >= self._ends_at:
            self._put_in_force()
        if self._looks and (is_up or time.monotonic() - self._said_at > SAID_EVERY):
            self._say_work()

    def _refresh(self) -> None:
        version = self._copy.version
        began, ended = self._copy.refresh()
        if self._copy.version == version:
            return
        self._clock = self._copy.at - time.monotonic()
        self._put_in_force()
        for hold in began.values():
            logger.warning("celery_poison: %s", hold.story)
        for hold in ended.values():
            logger.warning("celery_poison: hold %d is lifted", hold.number)

    def _put_in_force(self) -> None:
        """Put the holds in force whose time is not over, and have all plans made anew."""
        now = time.monotonic() + self._clock
        holds = {hold.number: hold for hold in self._copy.by_field.values() if not hold.is_over(now)}
        self._ends_at = min((hold.until for hold in holds.values() if hold.until), default=math.inf)
        self._in_force = holds
        self._checks = {}
        self._is_waiting = any(hold.waits for hold in holds.values())
        self.version += 1

    def _say_work(self) -> None:
        """Add what was done here to what all have done; what Redis does not take is said the next time."""
        work = Work(self._looks, self._nanoseconds, self._let_go)
        self._said_at = time.monotonic()
        try:
            self._holds.add_work(work)
        except LedgerUnavailable:
            return
        self._looks -= work.looks
        self._nanoseconds -= work.nanoseconds
        self._let_go -= work.let_go
