"""The ledger for Flower's event loop, which never waits for Redis: it is asked, and acted on, in threads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from threading import Event, Lock
from typing import Any, TypeVar
from uuid import uuid4

from celery import Celery
from celery.utils.log import get_logger

from celery_poison.desk import Quarantine
from celery_poison.desk.decisions import Outcome
from celery_poison.desk.read_model import ReadModel, Snapshot
from celery_poison.errors import LedgerUnavailable, PoisonError
from celery_poison.states import State

logger = get_logger("celery_poison")

T = TypeVar("T")

#: Threads that read, besides the one that keeps the snapshot.
READERS = 4
#: Seconds that a page waits for an answer before it says that there is none.
ANSWER_TIMEOUT = 2.0
#: Seconds that a list waits for what must be looked for in each of very many messages.
SEARCH_TIMEOUT = 30.0
#: The same of what is published: a broker may take its time.
PUBLISH_TIMEOUT = 10.0
#: Seconds that a page waits for a newer snapshot, if it has an older one to show.
SNAPSHOT_TIMEOUT = 0.7
#: The same where nothing was changed since.
UNCHANGED_TIMEOUT = 0.2
#: Seconds for which a snapshot is new enough.
FRESH = 1.0
#: Seconds without an answer after which a page says so, and after which a snapshot is called old.
_SILENT = 2.0
#: Finished acts that are remembered.
_JOBS_REMEMBERED = 200


#: Refusals that are named one by one; the rest is counted.
REFUSALS_NAMED = 100


class Stopped(Exception):
    """The act is to stop: a person asked for that."""


class ActJob:
    """One act on many messages.

    Args:
        choose: returns the ids, when the work begins.
        how: arguments of the act: ``actor``, ``note``, and what was switched on.

    Attributes:
        seen_at: when it was looked last at what is in quarantine, before it began, by Redis' clock.
    """

    def __init__(self, verb: str, choose: Callable[[Quarantine], Sequence[str]], **how: Any) -> None:
        self.id, self.verb = uuid4().hex, verb
        self.total: int | None = None
        self.done = self.refused = 0
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
                getattr(opened, self.verb)(ids, **self.how, on_outcome=self._hear_outcome)
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

    def _hear_outcome(self, outcome: Outcome) -> None:
        if outcome.done:
            self.done += 1
            if self.verb == "release":
                self._released.add(outcome.mid)
        else:
            self.refused += 1
            self.refusals += [outcome] if len(self.refusals) < REFUSALS_NAMED else []
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


class AsyncLedger:
    """Answers for one app. To be used from Flower's event loop.

    Attributes:
        snapshot: the newest.
        trouble: what is wrong, in a sentence; empty while Redis answers.
        jobs: acts under way, and the newest that have ended.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._readers = ThreadPoolExecutor(READERS, "poison-read")
        self._looker = ThreadPoolExecutor(1, "poison-look")
        self._actors = ThreadPoolExecutor(2, "poison-act")
        self._busy = 0
        self._opening = Lock()
        self._quarantine: Quarantine | None = None
        self._refreshing: asyncio.Future[None] | None = None
        self._outdated, self._asked_at = True, 0.0
        self.snapshot = Snapshot()
        self.trouble = ""
        self._is_mine = False
        self.jobs: dict[str, ActJob] = {}

    @property
    def quarantine(self) -> Quarantine:
        """The app's quarantine; ConfigurationError: a setting is wrong."""
        with self._opening:
            self._quarantine = self._quarantine or Quarantine(self._app)
            return self._quarantine

    @cached_property
    def _model(self) -> ReadModel:
        """Of the thread that looks, and of no other; raises as :attr:`quarantine`."""
        return ReadModel(self._app)

    async def ask(self, question: Callable[[], T], patience: float = ANSWER_TIMEOUT) -> T:
        """Return the answer of ``question``, asked in a thread.

        Raises:
            LedgerUnavailable: no answer in time, or too many wait for one already.
        """
        if self._busy >= READERS:
            raise LedgerUnavailable(self.trouble or "Redis does not answer, and others are waiting for it")
        self._busy += 1
        future = asyncio.get_running_loop().run_in_executor(self._readers, self._if_mine, question)
        future.add_done_callback(self._take_answer)
        try:
            # Where it is known that Redis is silent, no page waits for long to hear that again.
            patience = min(patience, SNAPSHOT_TIMEOUT) if self.trouble else patience
            return await asyncio.wait_for(asyncio.shield(future), patience)
        except TimeoutError:
            raise LedgerUnavailable(f"Redis has not answered within {patience:g} s") from None

    def _if_mine(self, question: Callable[[], T]) -> T:
        """Ask it of this app's ledger; another app's is not shown.

        Raises:
            SchemaMismatch: it is another's.
        """
        if not self._is_mine:
            self._is_mine = self.quarantine.check_owner()
        return question()

    async def change(self, question: Callable[[], T], patience: float = ANSWER_TIMEOUT) -> T:
        """Ask what changes something: the next look will be new."""
        try:
            return await self.ask(question, patience)
        finally:
            self._outdated = True

    def _take_answer(self, future: asyncio.Future[Any]) -> None:
        self._busy -= 1
        future.cancelled() or future.exception()  # an error that no page waited for is no news

    async def look(self) -> Snapshot:
        """Return a snapshot that is new, or the last one there is, soon; ``trouble`` says why it is old."""
        if self._outdated or self.snapshot.age > FRESH:
            # What was not looked at for a while, or was changed, is worth waiting for.
            worth = SNAPSHOT_TIMEOUT if self._outdated or self.snapshot.age > _SILENT else UNCHANGED_TIMEOUT
            refreshing = self._refresh()
            await asyncio.wait({refreshing}, timeout=worth if self.snapshot.overview else ANSWER_TIMEOUT)
            if not refreshing.done() and time.monotonic() - self._asked_at > _SILENT:
                self.trouble = self.trouble or "no answer so far"
        return self.snapshot

    async def start(self, job: ActJob, patience: float) -> ActJob:
        """Begin an act, and wait at most ``patience`` seconds for its end."""
        ended = [each.id for each in self.jobs.values() if each.finished]
        for id in ended[: max(0, len(ended) - _JOBS_REMEMBERED)]:
            del self.jobs[id]
        self.jobs[job.id] = job
        job.seen_at = self.snapshot.overview.at if self.snapshot.overview else 0.0
        work = asyncio.get_running_loop().run_in_executor(self._actors, job.run, lambda: self.quarantine)
        work.add_done_callback(self._end_act)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(work), patience)
        return job

    def _end_act(self, _: object) -> None:
        self._outdated = True

    def _refresh(self) -> asyncio.Future[None]:
        if self._refreshing is None or self._refreshing.done():
            self._outdated, self._asked_at = False, time.monotonic()
            loop = asyncio.get_running_loop()
            self._refreshing = loop.run_in_executor(self._looker, self._take)
        return self._refreshing

    def _take(self) -> None:
        try:
            self.snapshot, self.trouble = self._if_mine(lambda: self._model.look()), ""
        except PoisonError as error:
            self.trouble = str(error)
        except Exception as error:
            logger.exception("celery_poison: looking at the ledger failed")
            self.trouble = f"{type(error).__name__}: {error}"
