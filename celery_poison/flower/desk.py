"""Asks the ledger for pages, in threads of its own: Flower's event loop never waits for Redis."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

from celery import Celery
from celery.utils.log import get_logger

from celery_poison.errors import LedgerUnavailable, PoisonError
from celery_poison.flower.jobs import Job, Jobs, Order
from celery_poison.flower.shelf import Shelf, View
from celery_poison.model import GateRecord
from celery_poison.quarantine import Quarantine
from celery_poison.quarantine.gate import FleetGate
from celery_poison.quarantine.groups import By, Group, grouped
from celery_poison.quarantine.overview import Overview, overview
from celery_poison.quarantine.proposals import Applied, Proposals
from celery_poison.states import State

logger = get_logger(__name__)

T = TypeVar("T")

#: Threads that read, besides the one that keeps the snapshot.
READERS = 4
#: Seconds that a page waits for an answer before it says that there is none.
PATIENCE = 2.0
#: Seconds that a page waits for a newer snapshot, if it has an older one to show.
HURRY = 0.7
#: The same where nobody has acted since.
BRIEF = 0.2
#: Seconds for which a snapshot is new enough.
FRESH = 1.0
#: Seconds without an answer after which a page says so.
_SILENT = 2.0
#: Candidates that are looked through for those that run at this moment.
_ON_TRIAL_AMONG = 1000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of the whole, as of one moment; nothing at all before the first answer of Redis."""

    overview: Overview | None = None
    view: View = field(default_factory=View)
    groups: tuple[Group, ...] = ()
    on_trial: int = 0
    at: float = float("-inf")

    @property
    def age(self) -> float:
        """Seconds."""
        return time.monotonic() - self.at


class Desk:
    """Answers for one app. To be used from Flower's event loop."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._readers = ThreadPoolExecutor(READERS, "poison-read")
        self._keeper = ThreadPoolExecutor(1, "poison-snapshot")
        self._thinkers = ThreadPoolExecutor(1, "poison-filter")
        self._busy = 0
        self._opening = Lock()
        self._refreshing: asyncio.Future[None] | None = None
        self._outdated = True
        self._begun = asyncio.Event()
        self.snapshot = Snapshot()
        #: What is wrong, in a sentence; empty while Redis answers.
        self.trouble = ""
        self.jobs = Jobs(lambda: self.quarantine)

    @cached_property
    def _opened(self) -> tuple[Quarantine, dict[State, Shelf]]:
        quarantine = Quarantine(self._app)
        shelves = {state: Shelf(quarantine.queries, state) for state in (State.NDLV, State.FAIL)}
        quarantine.census = shelves[State.NDLV]
        return quarantine, shelves

    @property
    def quarantine(self) -> Quarantine:
        """The app's quarantine.

        Raises:
            ConfigurationError: a setting is wrong.
        """
        with self._opening:
            return self._opened[0]

    def shelf(self, state: State) -> Shelf:
        """Return what is in quarantine (NDLV) or given up (FAIL)."""
        with self._opening:
            return self._opened[1][state]

    async def ask(self, question: Callable[[], T], patience: float = PATIENCE) -> T:
        """Return what ``question`` returns, asked in a thread.

        Raises:
            LedgerUnavailable: no answer in time, or too many wait for one already.
        """
        if self._busy >= READERS:
            raise LedgerUnavailable(self.trouble or "Redis does not answer, and others are waiting for it")
        self._busy += 1
        future = asyncio.get_running_loop().run_in_executor(self._readers, question)
        future.add_done_callback(self._answered)
        try:
            # Where it is known that Redis is silent, nobody waits for long to be told again.
            patience = min(patience, HURRY) if self.trouble else patience
            return await asyncio.wait_for(asyncio.shield(future), patience)
        except TimeoutError:
            raise LedgerUnavailable(f"Redis has not answered within {patience:g} s") from None

    async def think(self, question: Callable[[], T]) -> T:
        """Return what ``question`` returns, which needs time and no Redis."""
        return await asyncio.get_running_loop().run_in_executor(self._thinkers, question)

    def _answered(self, future: asyncio.Future[Any]) -> None:
        self._busy -= 1
        future.cancelled() or future.exception()  # an error that nobody waited for is no news

    async def look(self) -> Snapshot:
        """Return a snapshot that is new, or the last one there is, soon; ``trouble`` says why it is old."""
        if self._outdated or self.snapshot.age > FRESH:
            acted = self._outdated
            refreshing = self._refresh()
            if self._begun.is_set():
                await asyncio.wait({refreshing}, timeout=HURRY if acted else BRIEF)
            else:
                first = asyncio.ensure_future(self._begun.wait())
                both: set[asyncio.Future[Any]] = {refreshing, first}
                await asyncio.wait(both, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                first.cancel()
            if not refreshing.done() and self.snapshot.age > _SILENT:
                self.trouble = self.trouble or "Redis has not answered so far"
        return self.snapshot

    async def look_at_all(self) -> Snapshot:
        """Return a snapshot of which nothing is unread.

        Raises:
            LedgerUnavailable: there is none yet.
        """
        await self.look()
        if self.snapshot.view.unread and self._refreshing:
            await asyncio.wait({self._refreshing}, timeout=PATIENCE)
        if self.snapshot.overview is None or self.snapshot.view.unread:
            raise LedgerUnavailable(self.trouble or "the quarantine is still being read: try again soon")
        return self.snapshot

    async def start(self, order: Order, patience: float) -> Job:
        """Begin an act, and wait for its end if that comes soon.

        Args:
            patience: seconds to wait.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        job = self.jobs.start(order, lambda: loop.call_soon_threadsafe(self._ended, ended))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), patience)
        return job

    async def lift_gate(self, actor: str, note: str) -> GateRecord:
        """Let deaths convict again.

        Raises:
            MessageNotFound: the fleet gate is not closed.
            LedgerUnavailable: no answer in time.
        """
        try:
            return await self.ask(lambda: FleetGate(self._app).lift(actor=actor, note=note))
        finally:
            self.outdate()

    async def apply_proposal(self, version: int, rules_only: bool, actor: str, note: str) -> Applied:
        """Put the pipeline's proposal in force, as it was read.

        Raises:
            ProposalRefused: it does not wait any more.
            LedgerUnavailable: no answer in time.
        """
        how: dict[str, Any] = {"actor": actor, "note": note, "rules_only": rules_only}
        try:
            return await self.ask(lambda: Proposals.of(self._app).apply(version, **how))
        finally:
            self.outdate()

    async def dismiss_proposal(self, version: int, actor: str, note: str) -> None:
        """Drop the pipeline's proposal; raises as :meth:`apply_proposal`."""
        try:
            await self.ask(lambda: Proposals.of(self._app).dismiss(version, actor=actor, note=note))
        finally:
            self.outdate()

    def _ended(self, ended: asyncio.Event) -> None:
        self.outdate()
        ended.set()

    def outdate(self) -> None:
        """The next look must be new: something was done."""
        self._outdated = True

    def _refresh(self) -> asyncio.Future[None]:
        if self._refreshing is None or self._refreshing.done():
            self._outdated = False
            loop = asyncio.get_running_loop()
            self._refreshing = loop.run_in_executor(self._keeper, self._take, loop)
        return self._refreshing

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            seen = overview(self._app)
            trials = self.quarantine.list(candidates=True, limit=_ON_TRIAL_AMONG) if seen.candidates else []
            on_trial = sum(record.state == State.DLNG for record in trials)

            def shown(view: View) -> None:
                before = self.snapshot
                same = before.view.records == view.records
                groups = before.groups if same else tuple(grouped(view.records, By.CAUSE))
                self.snapshot = Snapshot(seen, view, groups, on_trial, time.monotonic())
                loop.call_soon_threadsafe(self._begun.set)

            self.shelf(State.NDLV).refresh(shown)
            self.trouble = ""
        except PoisonError as error:
            self.trouble = str(error)
        except Exception as error:
            logger.exception("celery_poison: looking at the ledger failed")
            self.trouble = f"{type(error).__name__}: {error}"
