"""Every worker carries a monitor; the one that holds the lock declares workers dead (EMS-1 to EMS-4)."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any
from uuid import uuid4

import redis
from celery import Celery
from celery.utils.log import get_logger

from celery_poison import signals
from celery_poison.basics.calling import amend, gather
from celery_poison.basics.forking import no_fork
from celery_poison.basics.parts import Round
from celery_poison.errors import Fenced, LedgerUnavailable
from celery_poison.fleet.aside import Errands
from celery_poison.fleet.glances import GLANCE, Glances
from celery_poison.fleet.last_heard import last_heard
from celery_poison.fleet.recovery import Flagged, Recovered, Recovery
from celery_poison.ledger import Ledger
from celery_poison.ledger.fleet import (
    GONE_PATIENCE_MS,
    Fleet,
    GateLimits,
    Silence,
)
from celery_poison.plugin import plugin_of
from celery_poison.settings import Settings

logger = get_logger("celery_poison")

#: Seconds between two rounds of the monitor that holds the lock while it has work, and of one that tries to
#: get it.
ACTIVE_PAUSE = 0.25
STANDBY_PAUSE = 0.5
#: While nothing changes, each pause of the active one is twice as long as the last, up to this: in between,
#: glances ask whether that is so. A share of the activation interval, if less.
QUIET_PAUSE, QUIET_SHARE = 2.0, 0.2
#: The most while messages are to leave quarantine later: another one may be due earlier.
LEAVING_PAUSE = 0.5
#: Seconds between two looks for what lies under names of unknown workers, at most: while all is well, each
#: pause is twice as long as the last.
SWEEP_PAUSE = 30.0

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
    #: When the next round is due, whatever glances say, and the pause before it.
    _due, _calm = 0.0, ACTIVE_PAUSE

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
        self._queries = ledger.read
        self._identity = identity
        self._activation = settings.activation_interval
        self._activation_ms = int(settings.activation_interval * 1000)
        self._recovery = Recovery(app, ledger, flagged, trials=settings.has_trials)
        self._gate = _gate_of(settings)
        self._plugin = plugin_of(app)
        rounds = self._rounds_of()
        self._errands = Errands(app, ledger, settings, rounds)
        shortest = min((each.pause for each in rounds), default=QUIET_PAUSE)
        self._longest = max(ACTIVE_PAUSE, min(QUIET_PAUSE, QUIET_SHARE * self._activation, shortest))
        self._glances = Glances(ledger, max(STANDBY_PAUSE, self._activation / 2))
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
        self._next_sweep, self._sweep_pause = 0.0, self._activation / 2
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
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
        self._errands.join(until)

    @property
    def is_active(self) -> bool:
        return self._fence is not None

    def work(self) -> None:
        """Watch until :meth:`stop` is called."""
        while self._is_next():
            try:
                with no_fork():
                    if self._is_round_due():
                        self.round()
            except (LedgerUnavailable, Fenced) as error:
                self._start_listening_anew()
                logger.debug("celery_poison: the monitor pauses: %s", error)
            except Exception:
                self._start_listening_anew()
                logger.exception("celery_poison: the monitor failed; it goes on with its next round")

    def _is_next(self) -> bool:
        """Wait for the next round or glance, and return whether there is one."""
        glance = GLANCE if self.is_active else self._glances.standby_pause
        pause = max(0.0, min(self._due - time.monotonic(), glance))
        if self._wake.wait(min(self._pause, pause)):
            self._wake.clear()
            self._due = 0.0
        else:
            self._pause = 2 * min(self._pause, glance)
        return not self._is_stopped

    def _is_round_due(self) -> bool:
        """Return whether it is time for a round, or something has changed since the last."""
        now = time.monotonic()
        _, run_id = self._identity()
        if now >= self._due or now - self._last_round > self._activation or run_id not in ("", self._run_id):
            return True
        if self._fence is None:
            is_same = self._glances.is_held_still()
        else:
            seen_ms = self._glances.is_all_as_before()
            is_same = seen_ms is not None
            self._looks.extend([seen_ms] if seen_ms is not None else ())
        if self._is_late(now):
            self._start_listening_anew()
        self._last_round = now
        return not is_same

    def _is_late(self, since: float) -> bool:
        """Whether Redis hung meanwhile, and the heartbeats wait with this monitor to be heard."""
        return time.monotonic() - since > self._activation / 3

    def _start_listening_anew(self) -> None:
        self._fence = None
        self._sweep_soon()
        self._looks.clear()
        self._listening_since = time.monotonic()
        self._deaf_until = self._listening_since + EARS_OPEN
        self._due = self._listening_since + STANDBY_PAUSE

    def round(self) -> None:
        """One look at all workers; acts only while this monitor holds the lock."""
        now = time.monotonic()
        if now - self._last_round > self._activation:
            self._start_listening_anew()  # this process itself was paused
        self._last_round = now
        fence = self._take_lock()
        if fence is None:
            # By who is connected, until its lock runs out or its connections are gone.
            self._due = now + (STANDBY_PAUSE if not self._glances.is_held() else math.inf)
            return
        fleet = self._look()
        if fleet is None or fleet.gate_is_over:
            with self._step("lifting the fleet gate"):  # before a death may close it again
                self._lift_gate()
        unwell = self._unwell(now, fleet) if fleet is not None else {}
        for worker, how in unwell.items():
            with self._step(f"declaring worker {worker} dead"):
                self._declare_dead(worker, how, fence)
        if fleet is None or fleet.open or unwell:
            with self._step("asking which workers have died"):
                for worker, incident in self._queries.open_incidents().items():
                    with self._step(f"recovering from the death of worker {worker}"):
                        self._recover(worker, incident, fence)
        self._errands.begin(fence, fleet)
        self._plan(fleet)
        if now >= self._next_sweep and self._listened(now):
            self._sweep(now, fence)

    def _sweep(self, now: float, fence: int) -> None:
        """Look for what lies under names of unknown workers; again soon where something may do so."""
        pause = self._sweep_pause
        self._next_sweep, self._sweep_pause = now + self._activation / 2, self._activation / 2
        taken = 0
        with self._step("ending starts of unknown workers"):
            self._recovery.sweep_orphans(self._activation, fence)
            taken += 1
        with self._step("putting back messages of unknown workers"):
            self._recovery.sweep_unacknowledged()
            taken += 1
        if taken == 2 and not self._recovery.has_strays:
            self._next_sweep = now + pause
            self._sweep_pause = max(pause, min(2 * pause, SWEEP_PAUSE))

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

    def _look(self) -> Fleet | None:
        """Look at all that there may be to do; None where that is refused: each step asks by itself then."""
        fleet = None
        with self._step("looking at all workers"):
            fleet = self._ledger.fleet.watch(self._activation_ms)
        if self._glances.saw(fleet):
            self._calm = ACTIVE_PAUSE
            self._sweep_soon()
        return fleet

    def _sweep_soon(self) -> None:
        self._sweep_pause = self._activation / 2
        self._next_sweep = min(self._next_sweep, time.monotonic() + self._sweep_pause)

    def _plan(self, fleet: Fleet | None) -> None:
        """Say when the next round is due: soon while there is work, later and later while nothing changes."""
        if not self.is_active or fleet is None or fleet.has_work:
            self._calm = ACTIVE_PAUSE
        pause = self._calm
        if fleet is not None:
            pause = min(pause, max(HURRY, fleet.due))
            if fleet.leaves_in is not None:
                pause = min(pause, max(ACTIVE_PAUSE, min(LEAVING_PAUSE, fleet.leaves_in)))
        self._calm = min(2 * self._calm, self._longest)
        self._due = time.monotonic() + pause

    def _lift_gate(self) -> None:
        if self._ledger.fleet.lift_gate():
            logger.warning("celery_poison: the fleet gate is lifted: its time is over; deaths convict again")
            self._tell(signals.fleet_gate_lifted, actor="", note="")

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
            self._start_listening_anew()
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

    def _unwell(self, now: float, fleet: Fleet) -> dict[str, Silence]:
        if self._is_late(now) or self._is_new(fleet.run_id):  # it remembers old heartbeats only
            self._start_listening_anew()
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
        hooks, complain = self._plugin.extensions.recall, self._plugin.complain
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


def _gate_of(settings: Settings) -> GateLimits | None:
    share, workers = settings.fleet_gate_share, settings.fleet_gate_workers
    return GateLimits(share, workers, int(settings.fleet_gate_window * 1000)) if share else None
