"""What a worker does beside its messages: rounds in the background while it lives, and its farewell."""

from __future__ import annotations

import time
from collections.abc import Callable

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


class Rounds:
    """What goes on in the background of one worker as long as it lives."""

    def __init__(
        self,
        background: Background,
        writer: Writer,
        rejoin: Rejoin,
        owners: Owners,
        resync: Resync,
        master_follower: MasterFollower,
        refresher: Refresher,
        quarantine_writer: QuarantineWriter,
    ) -> None:
        self._quarantine_writer = quarantine_writer
        self._background = background
        self._writer = writer
        self._rejoin = rejoin
        self._owners = owners
        self._resync = resync
        self._master_follower = master_follower
        self._refresher = refresher
        self._begun = False

    def begin(self) -> None:
        """Start, once the pool has forked. Safe to call again."""
        if not self._begun:
            self._begun = True
            self._writer.open()  # now, and not when the event loop has something to note
            self._background.start()
            self._background.do(self._go_on)
            self._background.do(self._refresher.go_on)
            self._background.do(self._quarantine_writer.bring_spooled)
            if self._writer.follows_master:
                self._background.do(self._master_follower.go_on)

    def _go_on(self) -> None:
        self._rejoin.go_through()
        self._owners.read()
        # Nothing is forgotten here while Redis is away: it may come back having forgotten more than that.
        if self._writer.open():
            self._master_follower.heard_from(self._writer.run_id)
            self._resync.clean_up()
            self._resync.recheck()
        raise Retry(PAUSE)


class Farewell:
    """How one worker leaves the books clean: what still runs was interrupted, and nobody is to blame.

    Whoever still holds messages says no farewell: others declare it dead, and put them back.
    """

    def __init__(
        self,
        me: Incarnation,
        ledger: Ledger,
        cells: Cells,
        background: Background,
        loop: EventLoop,
        shutdown: Shutdown,
        deferred_cleanup: DeferredCleanup,
        outcomes: Outcomes,
        holdings: Holdings,
        crash_reports: CrashReports | None,
        complain: Callable[[Exception], object],
    ) -> None:
        self._me = me
        self._ledger = ledger
        self._cells = cells
        self._background = background
        self._loop = loop
        self._shutdown = shutdown
        self._deferred_cleanup = deferred_cleanup
        self._outcomes = outcomes
        self._holdings = holdings
        self._crash_reports = crash_reports
        self._complain = complain

    def __call__(self) -> None:
        """Say it, once everything that can be has been acknowledged."""
        self._shutdown.is_begun = True
        self._cells.end()
        self._background.finish(FAREWELL)
        self._loop.drain()
        self._shutdown.is_over = True
        try:
            # It may have been taken for dead a moment ago, and nobody else knows that these had ended.
            self._deferred_cleanup.take_back_flags(Queries(self._ledger).candidate_ids())
            self._deferred_cleanup.clean_up(everything=True)
            self._outcomes.take_back_all()
            if self._gives_everything_back():
                self._ledger.retire(self._me.worker)
                if self._me.rejoins:
                    self._ledger.retire(self._me.first_worker)
        except LedgerUnavailable as error:
            self._complain(error)
        if self._crash_reports is not None:
            self._crash_reports.remove()

    def _gives_everything_back(self) -> bool:
        over = time.monotonic() + FAREWELL
        while not self._holdings.leave_for_good():
            if time.monotonic() > over:
                return False
            time.sleep(PAUSE)
        return True
