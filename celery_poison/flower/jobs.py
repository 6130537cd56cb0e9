"""Acts under way: each is carried out in a thread, and watched from any page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any
from uuid import uuid4

from celery.utils.log import get_logger

from celery_poison.errors import PoisonError
from celery_poison.quarantine import Quarantine
from celery_poison.quarantine.acting import Outcome
from celery_poison.states import State

logger = get_logger(__name__)

#: Refusals that are told one by one; the rest is counted.
TOLD = 100


class Stopped(Exception):
    """Somebody asked for the act to stop."""


class Job:
    """One act on many messages.

    Args:
        choose: returns the ids, when the work begins.
        how: arguments of the act: ``actor``, ``note``, and what was switched on.

    Attributes:
        seen_at: when it was looked last at what is in quarantine, before it began, by Redis' clock.
    """

    def __init__(self, verb: str, choose: Callable[[Quarantine], Sequence[str]], **how: Any) -> None:
        self.id = uuid4().hex
        self.verb = verb
        self.total: int | None = None
        self.done = 0
        self.refused = 0
        self.refusals: list[Outcome] = []
        self.error = ""
        self.how = how
        self.seen_at = 0.0
        self._released: set[str] = set()
        self.started_at = time.time()
        self.finished_at: float | None = None
        self._choose = choose
        self._stop = Event()

    @property
    def finished(self) -> bool:
        return self.finished_at is not None

    @property
    def state(self) -> str:
        if not self.finished:
            return "running"
        complete = self.done + self.refused == self.total
        return "stopped" if self._stop.is_set() and not complete else "failed" if self.error else "done"

    def stop(self) -> None:
        """Stop after the message in hand; what is done is done."""
        self._stop.set()

    def run(self, quarantine: Callable[[], Quarantine]) -> None:
        """Carry it out; every trouble ends up in ``error``."""
        try:
            opened = quarantine()
            ids = self._choose(opened)
            self.total = len(ids)
            if ids:
                getattr(opened, self.verb)(ids, **self.how, on_outcome=self._heard)
        except Stopped:
            pass
        except PoisonError as error:
            self.error = str(error)
        except Exception as error:
            logger.exception("celery_poison: %s failed", self.verb)
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.finished_at = time.time()

    def died_again(self, quarantine: Quarantine) -> int:
        """Return how many of those that it released are in quarantine again."""
        if not self._released:
            return 0
        came = quarantine.queries.index(State.NDLV, self.seen_at)
        return sum(at > 1000 * self.seen_at and mid in self._released for mid, at in came)

    def _heard(self, outcome: Outcome) -> None:
        if outcome.done:
            self.done += 1
            if self.verb == "release":
                self._released.add(outcome.mid)
        else:
            self.refused += 1
            self.refusals += [outcome] if len(self.refusals) < TOLD else []
        if self._stop.is_set():
            raise Stopped

    def as_dict(self) -> dict[str, Any]:
        names = ("verb", "state", "total", "done", "refused", "error", "started_at", "finished_at")
        return {
            "job": self.id,
            **{name: getattr(self, name) for name in names},
            **{name: self.how[name] for name in ("actor", "note")},
            "refusals": [outcome.as_dict() for outcome in self.refusals],
        }
