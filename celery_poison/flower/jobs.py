"""Acts under way: carried out in threads of their own, watched from any page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any
from uuid import uuid4

from celery.utils.log import get_logger

from celery_poison.errors import PoisonError
from celery_poison.quarantine import Quarantine
from celery_poison.quarantine.outcome import Outcome

logger = get_logger(__name__)

#: Refusals that are told one by one; the rest is counted.
TOLD = 100
#: Finished jobs that are remembered.
REMEMBERED = 200


@dataclass(frozen=True, slots=True)
class Order:
    """What somebody wants to be done.

    Attributes:
        choose: returns the ids when the work begins.
        options: what was switched on beside the common arguments.
    """

    verb: str
    choose: Callable[[Quarantine], Sequence[str]]
    actor: str
    note: str
    options: dict[str, bool] = field(default_factory=dict)


class Stopped(Exception):
    """Somebody asked for the act to stop."""


class Job:
    """One act on many messages."""

    def __init__(self, order: Order) -> None:
        self.id = uuid4().hex
        self.order = order
        self.total: int | None = None
        self.done = 0
        self.refused = 0
        self.refusals: list[Outcome] = []
        self.error = ""
        self.started_at = time.time()
        self.finished_at: float | None = None
        self._stop = Event()

    @property
    def finished(self) -> bool:
        return self.finished_at is not None

    @property
    def state(self) -> str:
        if not self.finished:
            return "running"
        return "stopped" if self._stop.is_set() and not self._complete else "failed" if self.error else "done"

    @property
    def _complete(self) -> bool:
        return self.done + self.refused == self.total

    def stop(self) -> None:
        """Stop after the message in hand; what is done is done."""
        self._stop.set()

    def run(self, quarantine: Callable[[], Quarantine]) -> None:
        """Carry the order out; every trouble ends up in ``error``."""
        try:
            offered = quarantine()
            ids = self.order.choose(offered)
            self.total = len(ids)
            act = getattr(offered, self.order.verb)
            who = {"actor": self.order.actor, "note": self.order.note}
            if ids:
                act(ids, **who, **self.order.options, on_outcome=self._heard)
        except Stopped:
            pass
        except PoisonError as error:
            self.error = str(error)
        except Exception as error:
            logger.exception("celery_poison: %s failed", self.order.verb)
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.finished_at = time.time()

    def _heard(self, outcome: Outcome) -> None:
        if outcome.done:
            self.done += 1
        else:
            self.refused += 1
            if len(self.refusals) < TOLD:
                self.refusals.append(outcome)
        if self._stop.is_set():
            raise Stopped

    def as_dict(self) -> dict[str, Any]:
        return {
            "job": self.id,
            "verb": self.order.verb,
            "actor": self.order.actor,
            "note": self.order.note,
            "state": self.state,
            "total": self.total,
            "done": self.done,
            "refused": self.refused,
            "refusals": [outcome.as_dict() for outcome in self.refusals],
            "error": self.error,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
        }


class Jobs:
    """The acts of this process, at most two at a time."""

    def __init__(self, quarantine: Callable[[], Quarantine]) -> None:
        self._quarantine = quarantine
        self._threads = ThreadPoolExecutor(2, "poison-act")
        self._jobs: dict[str, Job] = {}

    def start(self, order: Order, finished: Callable[[], object]) -> Job:
        """Begin in the background; ``finished`` is called by that thread."""
        job = Job(order)
        self._jobs[job.id] = job
        self._forget()

        def work() -> None:
            job.run(self._quarantine)
            finished()

        self._threads.submit(work)
        return job

    def get(self, id: str) -> Job | None:
        return self._jobs.get(id)

    @property
    def running(self) -> list[Job]:
        return [job for job in self._jobs.values() if not job.finished]

    def _forget(self) -> None:
        ended = [job.id for job in self._jobs.values() if job.finished]
        for id in ended[: max(0, len(ended) - REMEMBERED)]:
            del self._jobs[id]
