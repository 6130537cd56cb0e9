"""The order of a worker's life: its parts, each with what it does as the worker starts, leaves and ends.

A worker may be a thread of a program: in tests, by ``celery.contrib.testing`` and its fixtures, or beside a
web server. Such a one is stopped cold as a rule, and of that Celery sends no signal.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from celery import signals

from celery_poison.basics.calling import tell
from celery_poison.errors import LedgerUnavailable, PoisonError
from celery_poison.worker import crash_reports, seed
from celery_poison.worker.announce import greet
from celery_poison.worker.delays import can_lend
from celery_poison.worker.lease import keep_child_alive
from celery_poison.worker.pool_processes import keep_what_runs, watch_again
from celery_poison.worker.sending import release_requests
from celery_poison.worker.site import release
from celery_poison.worker.threads import Retry
from celery_poison.worker.worker import GuardedWorker

#: Seconds a shutdown waits for decisions that are not on record yet, and for each thread that is to end.
FAREWELL = 5.0
PAUSE = 0.25
#: Seconds between two looks at whether the last task has ended.
LOOK = 0.1


def _nothing(*consumer: Any) -> None:
    pass


class Part(NamedTuple):
    """A part of a worker, with its steps; one that it does not name does nothing.

    Attributes:
        needs: names of parts that start before it, and end after it.
        begin: the pool has forked; there is no broker yet.
        start: takes the consumer, of a connection to the broker; again for each new one.
        leave: the worker consumes nothing more: begin nothing more.
        drain: everything was acknowledged that can be: finish what goes on.
        stop: begin nothing more, and wait for nothing.
        end: let go of everything; it may take seconds.
    """

    name: str
    needs: tuple[str, ...] = ()
    begin: Callable[[], object] = _nothing
    start: Callable[[Any], object] = _nothing
    leave: Callable[[], object] = _nothing
    drain: Callable[[], object] = _nothing
    stop: Callable[[], object] = _nothing
    end: Callable[[], object] = _nothing


class Life:
    """The life of one worker: its parts start in their order, and end the other way round.

    What a part raises as the worker leaves or ends is complained of, and the others go on.
    """

    _is_on_rounds = False

    def __init__(self, worker: GuardedWorker) -> None:
        self.worker = worker
        self.parts = tuple(self._parts())

    def _parts(self) -> Iterable[Part]:
        """Yield the parts with a life of their own, in the order in which they start."""
        ours = self.worker
        yield Part("lease", end=ours.lease.close)
        yield Part("loop", start=self._loop_begins, drain=ours.loop.drain, end=ours.loop.close)
        yield Part("writer", end=ours.writer.close)
        yield Part("books", end=ours.books.close)
        yield Part("ledger", end=ours.ledger.disconnect)
        yield Part("pulse", ("loop",), begin=ours.pulse.start)
        yield Part("pool", ("loop",), start=self._follow_pool)
        yield Part("rejoin", ("lease", "loop", "pool"), start=ours.rejoin.connected)
        if (renewal := ours.renewal) is not None:
            begin, end = partial(_without, renewal.begin), partial(renewal.end, FAREWELL)
            yield Part("renewal", ("books", "rejoin"), start=begin, end=end)
        yield Part(
            "background",
            ("writer", "books", "ledger", "rejoin"),
            start=self._begin_rounds,
            drain=partial(ours.background.finish, FAREWELL),
            end=partial(ours.background.end, FAREWELL),
        )
        yield Part("broker", ("background",), start=self._note_broker)
        yield Part("cells", ("background", "pool"), start=self._attach_cells, drain=ours.cells.end)
        yield Part(
            "heartbeat",
            ("lease", "writer", "cells", "pulse"),
            start=partial(_without, ours.heartbeat.start),
            end=partial(ours.heartbeat.end, FAREWELL),  # its thread ends by itself, when all is over
        )
        yield Part(
            "helpers",
            ("heartbeat",),
            start=partial(self._tell_helpers, "start"),
            leave=partial(self._tell_helpers, "finish", FAREWELL),
            stop=partial(self._tell_helpers, "stop"),
            end=self._join_helpers,
        )
        yield Part(
            "monitor",
            ("heartbeat",),
            start=partial(_without, ours.monitor.start),
            leave=ours.monitor.stop,
            stop=ours.monitor.stop,
            end=partial(ours.monitor.join, FAREWELL),
        )

    # --- in their order ------------------------------------------------------------------------

    def check(self) -> None:
        """Examine the ledger before anything starts.

        Raises:
            ConfigurationError: Redis is too old, may evict keys at will or cannot promise what
                ``poison_durability`` asks for, or the ledger belongs to another app.
            LedgerUnavailable: only with ``poison_fail_open=False``.
        """
        ours = self.worker
        try:
            ours.health.check(ours.ledger, ours.durable, ours.resync_window.meet_first)
        except PoisonError:
            self.release()
            raise
        greet(ours.app, ours.pool)

    def begin(self) -> None:
        for part in self.parts:
            part.begin()

    def start(self, consumer: Any) -> None:
        for part in self.parts:
            part.start(consumer)

    def leave(self) -> None:
        self._go_back(part.leave for part in reversed(self.parts))

    def farewell(self) -> None:
        """Leave the books clean: what still runs was interrupted, and no message is to blame.

        Once everything that can be has been acknowledged; nothing in a process that is not the main one.
        """
        ours = self.worker
        if os.getpid() != ours.me.pid:
            return
        ours.shutdown.is_begun = True
        is_drained = self._go_back(part.drain for part in reversed(self.parts))
        ours.shutdown.is_over = True
        if not is_drained:
            return  # others declare it dead, and put back what it has left
        try:
            # It may have been taken for dead a moment ago, and no other worker knows that these had ended.
            ours.deferred_cleanup.take_back_flags(ours.ledger.read.candidate_ids())
            ours.deferred_cleanup.clean_up(everything=True)
            ours.outcomes.take_back_all()
            if self._gives_everything_back():
                ours.ledger.fleet.retire(ours.me.worker)
                if ours.me.rejoins:
                    ours.ledger.fleet.retire(ours.me.first_worker)
        except LedgerUnavailable as error:
            ours.complain(error)
        if ours.crash_reports is not None:
            ours.crash_reports.remove()

    def release(self) -> None:
        """Let go of all that is this process's, after the farewell: it may go on without a worker."""
        ours = self.worker
        # All are stopped before one is waited for.
        self._go_back(part.stop for part in reversed(self.parts))
        self._go_back(part.end for part in reversed(self.parts))
        release(ours.me.born_as)
        if not release_requests(ours.app, ours.me.node):
            ours.plugin.complain_to(None)
        if ours.connection is not None and vars(ours.app.amqp).get("Connection") is ours.connection:
            del ours.app.amqp.Connection

    def _go_back(self, steps: Iterable[Callable[[], object]]) -> bool:
        """Take all steps, whichever fails; return whether none has."""
        is_done = True
        for step in steps:
            try:
                step()
            except Exception as error:
                self.worker.complain(error)
                is_done = False
        return is_done

    @property
    def is_at_work(self) -> bool:
        """Whether tasks run in this very process, or the fate of a message of theirs is being decided."""
        ours = self.worker
        return ours.pool.contained and bool(ours.inflight.in_pool() or ours.inflight.undecided)

    def _gives_everything_back(self) -> bool:
        """A worker that still holds messages says no farewell: others declare it dead, and put them back."""
        over = time.monotonic() + FAREWELL
        while not self.worker.books.leave_for_good():
            if time.monotonic() > over:
                return False
            time.sleep(PAUSE)
        return True

    # --- steps of its parts --------------------------------------------------------------------

    def child_begins(self, **_: Any) -> None:
        """Set up a process of the pool, in that process; a cell has its own way."""
        ours = self.worker
        # The solo pool sends this signal too, perhaps of another worker in this process.
        if seed.is_cell or os.getpid() == ours.me.pid:
            return
        if ours.crash_reports is not None:
            crash_reports.begin_report(ours.crash_reports.path)
        keep_child_alive(ours.writer, ours.ledger.keys, ours.me.worker, ours.settings, ours.lease)

    def _loop_begins(self, consumer: Any) -> None:
        self.worker.loop.clock.connected()

    def _follow_pool(self, consumer: Any) -> None:
        self.worker.exits.follow(consumer.pool)
        keep_what_runs(consumer.pool)
        watch_again(consumer.pool)

    def _attach_cells(self, consumer: Any) -> None:
        self.worker.cells.attach(self.worker.road.dispatcher.take_back)

    def _note_broker(self, consumer: Any) -> None:
        """Note that the worker is connected to its broker, perhaps anew."""
        ours = self.worker
        ours.broadcasts.say(consumer.app.amqp.queues.consume_from.values())
        ours.loop.is_filled_by_delays = ours.delays.say(consumer)
        ours.loop.can_lend = can_lend(consumer)
        ours.background.do(partial(ours.health.note_broker, ours.ledger), lambda: False)

    def _begin_rounds(self, consumer: Any) -> None:
        """Start what goes on in the background, at the first connection."""
        if self._is_on_rounds:
            return
        self._is_on_rounds, ours = True, self.worker
        ours.writer.open()  # now, and not when the event loop has something to note
        ours.background.start()
        ours.background.do(self._go_round)
        ours.background.do(ours.refresher.go_on)
        ours.background.do(ours.quarantine_writer.bring_spooled)
        if ours.writer.follows_master:
            ours.background.do(ours.resync.follow_master)

    def _go_round(self) -> None:
        ours = self.worker
        ours.rejoin.go_through()
        ours.owners.read()
        # Nothing is forgotten here while Redis is away: it may come back having forgotten more than that.
        if ours.writer.open():
            ours.resync.heard_from(ours.writer.run_id)
            ours.resync.refused(ours.lease.refusals)
            ours.resync.clean_up()
            ours.resync.recheck()
        raise Retry(PAUSE)

    def _tell_helpers(self, step: str, *consumer_or_patience: Any) -> None:
        patience = () if step == "start" else consumer_or_patience
        tell((getattr(each, step) for each in self.worker.helpers), self.worker.complain, *patience)

    def _join_helpers(self) -> None:
        if threading.current_thread() is not threading.main_thread():  # else the process ends as a rule
            self._tell_helpers("join", FAREWELL)


class Farewell:
    """Says farewell once, as soon as everything was acknowledged that can be.

    Args:
        worker: Celery's.
        life: of what is built for it.
    """

    def __init__(self, worker: Any, life: Life) -> None:
        self._worker, self._life = worker, life
        self._is_over = False
        self._lock = threading.Lock()
        self._stopped = worker.blueprint.on_stopped
        worker.blueprint.on_stopped = self._has_stopped
        # Of this worker only: another one may run in the same process.
        signals.worker_shutting_down.connect(self._stopping, sender=worker.hostname)
        signals.worker_shutdown.connect(self._shut_down, sender=worker)
        atexit.register(self._exit)

    def _stopping(self, sig: str = "", **_: Any) -> None:
        # Called from a signal handler: nothing but this may be done here.
        self._life.worker.shutdown.ask(sig)

    def _has_stopped(self) -> None:
        """As in Celery; then, since no signal is sent at the end of a cold shutdown, all that follows."""
        if self._stopped is not None:
            self._stopped()
        if self._life.is_at_work:  # threads cannot be stopped: the last of them is waited for
            threading.Thread(target=self._wait, name="poison-farewell", daemon=True).start()
        else:
            self._shut_down()

    def _wait(self) -> None:
        while self._life.is_at_work:
            time.sleep(LOOK)
        self._shut_down()

    def _shut_down(self, **_: Any) -> None:
        if self._exit():
            self._life.release()
            signals.worker_process_init.disconnect(self._life.child_begins)
            signals.worker_shutting_down.disconnect(self._stopping, sender=self._worker.hostname)
            signals.worker_shutdown.disconnect(self._shut_down, sender=self._worker)

    def _exit(self) -> bool:
        """Say farewell, unless that was done already; return whether it was done now."""
        with self._lock:
            if self._is_over:
                return False
            self._is_over = True
            atexit.unregister(self._exit)
            self._life.farewell()
            return True


def _without(step: Callable[[], object], consumer: Any) -> None:
    """Call a step that does not ask for the consumer."""
    step()
