"""Every worker carries a monitor; the one that holds the lock declares workers dead (EMS-1 to EMS-4)."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any
from uuid import uuid4

import redis
from celery import Celery
from celery.utils.log import get_logger

from celery_poison import signals
from celery_poison.basics.calling import amend, gather
from celery_poison.basics.forking import no_fork
from celery_poison.basics.frames import frames_in, is_waiting
from celery_poison.basics.numbers import moment, whole
from celery_poison.basics.parts import Round
from celery_poison.basics.pulse import ALIVE, stood
from celery_poison.causes import NEAR, Evidence
from celery_poison.errors import Fenced, LedgerUnavailable
from celery_poison.failover.aside import Aside
from celery_poison.failover.parking import Parking
from celery_poison.failover.recovery import Flagged, Recovered, Recovery
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.fleet import (
    GONE_PATIENCE_MS,
    GateLimits,
    Silence,
)
from celery_poison.ledger.queries import Queries
from celery_poison.ledger.rows import strings
from celery_poison.plugin import plugin_of
from celery_poison.quarantine.departures import Departures
from celery_poison.quarantine.retention import Retention
from celery_poison.settings import Settings

logger = get_logger("celery_poison")

#: Seconds between two rounds of the monitor that holds the lock, and of one that only tries to get it.
ACTIVE_PAUSE = 0.25
STANDBY_PAUSE = 0.5

#: Seconds until the second round after a nursery's word; each further pause is twice as long as the last.
HURRY = 0.02

#: Seconds for which a monitor must have heard Redis again before it believes that connections are gone:
#: what cut its own connection may have cut those of all others.
EARS_OPEN = 3 * GONE_PATIENCE_MS / 1000


class Monitor:
    """Watches all workers.

    A silence counts only if this monitor could have heard a sound: after Redis was away, or after this
    process was paused, it listens for a whole activation interval before it believes in any silence.

    Args:
        app: the Celery app, whose broker the messages are put back on.
        identity: returns the incarnation in whose name the lock is taken, and the run id of the Redis at
            which its process is subscribed (empty: it is not).
        flagged: called for every message that becomes a candidate.
        took_over: called when this monitor becomes the active one (EMS-9).
        event: called for what happens to the fleet: with the name of a signal, and its arguments.
    """

    _is_stopped = False
    _pause = STANDBY_PAUSE

    def __init__(
        self,
        app: Celery,
        ledger: Ledger,
        settings: Settings,
        identity: Callable[[], tuple[str, str]],
        flagged: Flagged,
        took_over: Callable[[], object] = lambda: None,
        event: Callable[[str, dict[str, Any]], object] = lambda name, facts: None,
    ) -> None:
        self._ledger = ledger
        self._queries = Queries(ledger)
        self._identity = identity
        self._activation = settings.activation_interval
        self._activation_ms = int(settings.activation_interval * 1000)
        self._recovery = Recovery(app, ledger, flagged, trials=settings.has_trials)
        self._gate = _gate_of(settings)
        self._parking, self._unparking = Parking(app, ledger, settings), Aside("poison-parking")
        self._departures, self._sending = Departures(app, ledger), Aside("poison-outgoing")
        self._retention, self._deleting = Retention(ledger, settings), Aside("poison-retention", 60.0)
        self._forgetting = Aside("poison-forgetting", 60.0)
        self._plugin = plugin_of(app)
        self._rounds = [(Aside(each.name, each.pause), each.work) for each in self._rounds_of()]
        #: Steps that failed, and of what.
        self._complained: set[str] = set()
        self._took_over = took_over
        self._event = event
        #: What was done so far about deaths that are not finished with.
        self._recovered: dict[str, Recovered] = {}
        #: When it looked at all workers, in ms of Redis' clock.
        self._looks: deque[int] = deque(maxlen=1000)
        self._listening_since = self._last_round = time.monotonic()
        self._deaf_until = 0.0
        #: Of the Redis that was asked last.
        self._run_id: str | None = None
        self._next_sweep = 0.0
        self._fence: int | None = None
        #: Ends the pause between two rounds.
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def _rounds_of(self) -> list[Round]:
        plugin = self._plugin
        return gather(plugin.extensions.rounds, plugin.complain, self._ledger, self._tell)

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self.work, name="poison-monitor", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self.begin_no_more()
        self._wake.set()

    def begin_no_more(self) -> None:
        """End before the next round; takes no lock, so that a handler of a signal may call it."""
        self._is_stopped = True

    def hurry(self) -> None:
        """Look at once, and soon again: a nursery has said that its worker has ended."""
        self._pause = HURRY
        self._wake.set()

    def join(self, patience: float) -> None:
        """Wait at most so many seconds until its threads have ended."""
        until = time.monotonic() + patience
        for thread in (self._thread, self._sending, self._deleting, *(aside for aside, _ in self._rounds)):
            if thread is not None:
                thread.join(max(0.0, until - time.monotonic()))

    @property
    def is_active(self) -> bool:
        return self._fence is not None

    def work(self) -> None:
        """Watch until :meth:`stop` is called."""
        while self._is_next():
            try:
                with no_fork():
                    self.round()
            except (LedgerUnavailable, Fenced) as error:
                self._hear_nothing()
                logger.debug("celery_poison: the monitor pauses: %s", error)
            except Exception:
                self._hear_nothing()
                logger.exception("celery_poison: the monitor failed; it goes on with its next round")

    def _is_next(self) -> bool:
        """Wait for the next round, and return whether there is one."""
        pause = ACTIVE_PAUSE if self.is_active else STANDBY_PAUSE
        if self._wake.wait(min(self._pause, pause)):
            self._wake.clear()
        else:
            self._pause = 2 * min(self._pause, pause)
        return not self._is_stopped

    def _hear_nothing(self) -> None:
        self._fence = None
        self._looks.clear()
        self._listening_since = time.monotonic()
        self._deaf_until = self._listening_since + EARS_OPEN

    def round(self) -> None:
        """One look at all workers; acts only while this monitor holds the lock."""
        now = time.monotonic()
        if now - self._last_round > self._activation:
            self._hear_nothing()  # this process itself was paused
        self._last_round = now
        fence = self._take_lock()
        if fence is None:
            return
        with self._step("lifting the fleet gate"):  # before a death may close it again
            self._lift_gate()
        with self._step("looking at all workers"):
            for worker, how in self._unwell(now).items():
                with self._step(f"declaring worker {worker} dead"):
                    self._declare_dead(worker, how, fence)
        with self._step("asking which workers have died"):
            for worker, incident in self._queries.open_incidents().items():
                with self._step(f"recovering from the death of worker {worker}"):
                    self._recover(worker, incident, fence)
        self._work_aside(fence)
        if now >= self._next_sweep and self._listened(now):
            self._next_sweep = now + self._activation / 2
            with self._step("ending starts of unknown workers"):
                self._recovery.sweep_orphans(self._activation, fence)
            with self._step("putting back messages of unknown workers"):
                self._recovery.sweep_unacknowledged()

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """Log what goes wrong in one step of a round, once: the others happen all the same (NEW-9)."""
        try:
            yield
        except Exception as error:
            # A command that Redis refuses is a matter of this step; a Redis that is away one of all steps.
            refused = isinstance(error.__cause__, redis.ResponseError)
            if isinstance(error, Fenced) or (isinstance(error, LedgerUnavailable) and not refused):
                raise
            trouble = f"{what}: {error!r}"
            level = logging.DEBUG if trouble in self._complained else logging.ERROR
            self._complained = {trouble, *islice(self._complained, 100)}
            story = "celery_poison: the monitor fails at %s; it does the rest, and tries this again"
            logger.log(level, story, what, exc_info=True)

    def _lift_gate(self) -> None:
        if self._ledger.fleet.lift_gate():
            logger.warning("celery_poison: the fleet gate is lifted: its time is over; deaths convict again")
            self._tell(signals.fleet_gate_lifted, actor="", note="")

    def _work_aside(self, fence: int) -> None:
        """Begin what waits for brokers, disks and receivers, which may not answer."""
        with self._step("asking what is parked and what leaves quarantine"):
            parked, leaves = self._queries.moves()
            if parked:
                self._unparking.do(self._parking.round)
            if leaves:
                self._sending.do(self._departures.round)
        self._forgetting.do(self._parking.forget_the_old)
        self._deleting.do(self._retention.round)
        for aside, work in self._rounds:
            aside.do(partial(work, fence))

    def _listened(self, now: float) -> bool:
        return now - self._listening_since >= self._activation

    def _is_new(self, run_id: str) -> bool:
        """Whether this is another Redis than the one that was heard before, or it has been restarted."""
        if not run_id or run_id == self._run_id:
            return False
        known, self._run_id = self._run_id, run_id
        return known is not None

    def _take_lock(self) -> int | None:
        me, run_id = self._identity()
        if self._is_new(run_id):
            self._hear_nothing()
        led = self._ledger.fleet.lead(me, self._activation_ms, run_id)
        if led is None:
            self._fence = None
            return None
        fence, changed = led
        if changed:
            logger.debug("celery_poison: the monitor of %s is the active one now (fence %d)", me, fence)
            self._took_over()
            self._tell(signals.monitor_changed, worker=me, fence=fence)
        self._fence = fence
        return fence

    def _unwell(self, now: float) -> dict[str, Silence]:
        fleet = self._ledger.fleet.watch(self._activation_ms)
        late = time.monotonic() - now > self._activation / 3
        if late or self._is_new(fleet.run_id):
            # Redis hung, and the heartbeats wait with us to be heard; or it remembers old ones only.
            self._hear_nothing()
            return {}
        self._looks.append(fleet.at_ms)
        gone = [worker for worker, how in fleet.unwell.items() if how is Silence.GONE]
        # When most of a fleet vanishes at once, the network is more likely than as many deaths.
        massive = len(gone) >= 3 and 2 * len(gone) > fleet.counted
        believed: dict[str, Silence] = {}
        for worker, how in fleet.unwell.items():
            if how is Silence.GONE and not massive:
                if now >= self._deaf_until:
                    believed[worker] = how
            elif self._listened(now):
                believed[worker] = Silence.SILENT if how is Silence.GONE else how
        return believed

    def _declare_dead(self, worker: str, how: Silence, fence: int) -> None:
        incident = uuid4().hex[:12]
        earlier = [*self._recovery.earlier_deaths(worker)] if self._gate else []
        evidence = last_heard(self._ledger, worker, how, self._looks)
        hooks, complain = self._plugin.extensions.testify, self._plugin.complain
        evidence = amend(hooks, complain, evidence, worker, "", self._ledger)
        dead = self._ledger.fleet.declare_dead(
            worker,
            incident,
            how,
            self._activation_ms,
            fence,
            self._gate,
            earlier,
            evidence=evidence.encode(),
            seen_ms=evidence.after_ms or 0,
        )
        if dead is None:
            return
        logger.error(
            "celery_poison: worker %s is lost (%s, noticed as %s), incident %s",
            *(worker, dead.cause, how, incident),
        )
        whose = {"worker": worker, "incident": incident}
        self._tell(signals.worker_lost, **whose, cause=dead.cause, how=how.value)
        if dead.closed_gate:
            logger.critical(
                "celery_poison: %d of %d workers died in a short time: the fleet gate is closed. Until it is"
                " lifted, by itself or by `celery poison gate lift`, only a death on trial convicts",
                dead.deaths,
                dead.fleet,
            )
            self._tell(signals.fleet_gate_closed, **whose, deaths=dead.deaths, fleet=dead.fleet)

    def _recover(self, worker: str, incident: str, fence: int) -> None:
        if incident not in self._recovered:
            self._tell(signals.failover_started, worker=worker, incident=incident)
        done = self._recovered.get(incident, Recovered()) + self._recovery.recover(worker, incident, fence)
        self._recovered[incident] = done
        if done.unfinished:
            return  # looked at again in the next round
        del self._recovered[incident]
        self._ledger.fleet.close_incident(
            worker,
            incident,
            flagged=done.flagged,
            put_back=done.put_back,
            returned=done.returned,
            fence=fence,
        )
        logger.warning(
            "celery_poison: worker %s: %d messages flagged, %d put back", worker, done.flagged, done.put_back
        )
        self._tell(
            signals.failover_finished,
            worker=worker,
            incident=incident,
            put_back=done.put_back,
            flagged=done.flagged,
            returned=done.returned,
        )

    def _tell(self, signal: Any, **facts: Any) -> None:
        signal.send(sender=None, **facts)
        self._event(signal.name, facts)


# --- host evidence ---------------------------------------------------------------------------------


def last_heard(ledger: Ledger, worker: str, how: Silence, looks: Iterable[int] = ()) -> Evidence:
    """Return what is known about a worker that is about to be declared dead.

    Args:
        looks: when this monitor looked at all workers, in ms of Redis' clock.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading the last heartbeat of a worker"):
        pipe = ledger.client.pipeline(transaction=False)
        pipe.hmget(ledger.keys.worker(worker), "vitals", "stack")
        pipe.zscore(ledger.keys.leases, worker)
        pipe.hget(ledger.keys.gone, worker)
        pipe.time()
        (vitals, stack), beat, gone, (seconds, micros) = pipe.execute()
    ended = whole(gone) if how is Silence.GONE and gone else seconds * 1000 + micros // 1000
    heard_ms = max(0, ended - moment(beat)) if beat is not None else None
    evidence = Evidence(noticed=how, heard_ms=heard_ms)
    with suppress(ValueError, TypeError, KeyError, AttributeError):  # another version's, or none
        last_words = json.loads(vitals or b"{}")
        used, limit = last_words["used_kb"], last_words["limit_kb"]
        evidence = replace(
            evidence,
            used_kb=used or None,
            limit_kb=limit or None,
            limit_of=last_words["limit_of"] if limit else "",
            near_limit=used >= NEAR * limit if limit else None,
            asked=last_words.get("asked", ""),
            asked_ms=last_words["asked_ms"] + (heard_ms or 0) if "asked_ms" in last_words else None,
        )
    if how is Silence.FROZEN or evidence.asked == ALIVE:
        # What froze it where this host can tell, else where its loop stood before.
        evidence = replace(evidence, stack=_where_it_stands(worker) or strings(stack))
    if beat is None or how is Silence.FROZEN:  # no process died
        return evidence
    # Until its connections were gone, every look has seen them.
    seen = max((look for look in looks if look < ended), default=0) if how is Silence.GONE else 0
    return replace(evidence, after_ms=max(moment(beat), seen), by_ms=ended)


def _where_it_stands(worker: str) -> tuple[str, ...]:
    """Return where the loop of a worker on this host is that stands still; () where nobody here knows."""
    stack = frames_in(stood(worker))
    return () if is_waiting(stack) else stack


def _gate_of(settings: Settings) -> GateLimits | None:
    share, workers = settings.fleet_gate_share, settings.fleet_gate_workers
    return GateLimits(share, workers, int(settings.fleet_gate_window * 1000)) if share else None
