"""What a worker does beside its messages: rounds in the background while it lives, and its farewell."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from celery_poison.broker.held import Holdings
from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.ledger.writer import Writer
from celery_poison.sandbox.pool import Cells
from celery_poison.worker.background import Background, Retry
from celery_poison.worker.crash_reports import CrashReports
from celery_poison.worker.deferred_cleanup import DeferredCleanup
from celery_poison.worker.heartbeat import Owners, Shutdown
from celery_poison.worker.loop import EventLoop
from celery_poison.worker.outcome import Outcomes
from celery_poison.worker.quarantine_writer import QuarantineWriter
from celery_poison.worker.refresh import Refresher
from celery_poison.worker.rejoin import Incarnation, Rejoin
from celery_poison.worker.resync import MasterFollower, Resync

#: Seconds a shutdown waits for decisions that are not on record yet.
FAREWELL = 5.0
#: Seconds between two rounds.
PAUSE = 0.25


@dataclass(eq=False, repr=False)
class Rounds:
    """What goes on in the background of one worker as long as it lives."""

    background: Background
    writer: Writer
    rejoin: Rejoin
    owners: Owners
    resync: Resync
    master_follower: MasterFollower
    refresher: Refresher
    quarantine_writer: QuarantineWriter
    _begun = False

    def begin(self) -> None:
        """Start, once the pool has forked. Safe to call again."""
        if not self._begun:
            self._begun = True
            self.writer.open()  # now, and not when the event loop has something to note
            self.background.start()
            self.background.do(self._go_on)
            self.background.do(self.refresher.go_on)
            self.background.do(self.quarantine_writer.bring_spooled)
            if self.writer.follows_master:
                self.background.do(self.master_follower.go_on)

    def _go_on(self) -> None:
        self.rejoin.go_through()
        self.owners.read()
        # Nothing is forgotten here while Redis is away: it may come back having forgotten more than that.
        if self.writer.open():
            self.master_follower.heard_from(self.writer.run_id)
            self.resync.clean_up()
            self.resync.recheck()
        raise Retry(PAUSE)


@dataclass(eq=False, repr=False)
class Farewell:
    """How one worker leaves the books clean: what still runs was interrupted, and nobody is to blame.

    Whoever still holds messages says no farewell: others declare it dead, and put them back.
    """

    me: Incarnation
    ledger: Ledger
    cells: Cells
    background: Background
    loop: EventLoop
    shutdown: Shutdown
    deferred_cleanup: DeferredCleanup
    outcomes: Outcomes
    holdings: Holdings
    crash_reports: CrashReports | None
    complain: Callable[[Exception], object]

    def __call__(self) -> None:
        """Say it, once everything that can be has been acknowledged."""
        self.shutdown.is_begun = True
        self.cells.end()
        self.background.finish(FAREWELL)
        self.loop.drain()
        self.shutdown.is_over = True
        try:
            # It may have been taken for dead a moment ago, and nobody else knows that these had ended.
            self.deferred_cleanup.take_back_flags(Queries(self.ledger).candidate_ids())
            self.deferred_cleanup.clean_up(everything=True)
            self.outcomes.take_back_all()
            if self._gives_everything_back():
                self.ledger.retire(self.me.worker)
                if self.me.rejoins:
                    self.ledger.retire(self.me.first_worker)
        except LedgerUnavailable as error:
            self.complain(error)
        if self.crash_reports is not None:
            self.crash_reports.remove()

    def _gives_everything_back(self) -> bool:
        over = time.monotonic() + FAREWELL
        while not self.holdings.leave_for_good():
            if time.monotonic() > over:
                return False
            time.sleep(PAUSE)
        return True
