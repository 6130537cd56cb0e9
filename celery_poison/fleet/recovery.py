"""Cleans up after a dead worker: flags what was running, then puts its unacknowledged messages back.

In this order, and every step can be repeated: a monitor that dies in between is followed by another,
which begins again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from celery import Celery

from celery_poison import causes
from celery_poison.basics.calling import amend, tell
from celery_poison.broker.kinds import owners, put_back
from celery_poison.broker.port import PutBack
from celery_poison.causes import Evidence
from celery_poison.decide import DeadStart, EndOfStart, StartEnd, end_of
from celery_poison.errors import StaleDelivery
from celery_poison.ledger import Ledger
from celery_poison.ledger.fleet import Silence
from celery_poison.ledger.fleet_model import Incident
from celery_poison.ledger.messages import Known
from celery_poison.model import NO_HISTORY, Ended, Guilt, Phase, Start
from celery_poison.plugin import plugin_of
from celery_poison.rules.doubts import LATELY, Blow
from celery_poison.upstream.results import StoredResults

#: Seconds for which a finished start is remembered whose acknowledgement may be lost.
REMEMBER = 6 * 3600.0
#: Age in seconds of a start whose message only a monitor can have put back: no visibility timeout was over.
JUST_NOW = 600.0

#: Seconds for which a death that may convict waits for others: more of them may close the fleet gate.
FLEET_PATIENCE = 1.0


#: Of a start that is taken back, and nothing more.
NOTHING = EndOfStart(StartEnd.INTERRUPT)

#: Called with (task id, task name, cause, deaths so far) for every message that was flagged.
Flagged = Callable[[str, str, str, int], None]


@dataclass(frozen=True, slots=True)
class Recovered:
    """The outcome of the recovery from one death.

    Attributes:
        flagged: messages that became candidates.
        put_back: messages put back; 0 where the broker does that itself.
        returned: the same by queue.
        unfinished: starts whose pool process lives on without its main process, and may finish; and those
            whose death may convict, while more workers may be dying.
    """

    flagged: int = 0
    put_back: int = 0
    returned: Mapping[str, int] = field(default_factory=dict)
    unfinished: int = 0

    def __add__(self, later: Recovered) -> Recovered:
        # The later look finds all that was put back, at any time and by any process.
        return Recovered(self.flagged + later.flagged, later.put_back, later.returned, later.unfinished)


class _Death(NamedTuple):
    """The death that is being recovered from, and the right to do so."""

    incident: Incident
    fence: int

    @property
    def evidence(self) -> Evidence:
        evidence = self.incident.evidence
        return evidence if evidence.noticed else Evidence(noticed=self.incident.how)


class Recovery:
    """Recovers from the deaths of workers, on one app's broker and ledger."""

    def __init__(self, app: Celery, ledger: Ledger, flagged: Flagged, *, trials: bool = True) -> None:
        self._app = app
        self._trials = trials
        self._flagged = flagged
        self._ledger = ledger
        self._queries = ledger.read
        self._plugin = plugin_of(app)
        self._results = StoredResults()
        #: Starts of unknown workers, and when they were first seen here.
        self._orphans: dict[str, float] = {}
        #: Unknown boot ids, and under which messages lay unacknowledged, at the last sweep.
        self._ownerless: set[str] = set()
        #: Ends on record without a start, at the last sweep.
        self._strays: set[str] = set()

    def recover(self, worker: str, incident: str, fence: int) -> Recovered:
        """Flag what ``worker`` was running and put back what it held.

        Raises:
            Fenced: another monitor took over, and goes on with this.
        """
        known = self._queries.incident(incident)
        if known is None:
            known = Incident(incident=incident, worker=worker, cause=causes.UNKNOWN)
        flagged = unfinished = 0
        finished = []
        starts = [row for row in self._queries.running() if row[1].worker == worker]
        # What was being received last: while its mark is there, a monitor that begins again sees it too.
        starts.sort(key=lambda row: row[1].phase == Phase.ADMITTING)
        noticed = known.noticed_at
        death = _Death(known, fence)
        of_all = partial(
            DeadStart,
            nobodys_fault=known.cause in causes.NOBODYS_FAULT,
            receiving=any(start.phase == Phase.ADMITTING for _, start, _ in starts),
            beside=any(start.phase == Phase.RUNNING and not start.is_in_cell for _, start, _ in starts),
            early=noticed is not None and self._queries.now_ms() / 1000 - noticed < FLEET_PATIENCE,
            trials=self._trials,
        )
        blow = self._blow_to(start for _, start, _ in starts)
        ends = self._queries.ends([start.token for _, start, _ in starts])
        for (mid, start, raw), ended in zip(starts, ends, strict=True):
            end = end_of(of_all(start, ended, **self._facts(start, ended, known, blow)))
            if end.end is StartEnd.FINISHED:
                finished.append((mid, start.token))
            unfinished += end.end is StartEnd.WAIT
            with suppress(StaleDelivery):
                flagged += self._end(mid, start, raw, end, death)
        queues = known.queues.split(",") if known.queues else []
        returned = put_back(self._app, worker.rpartition("/")[2], queues)
        self._forget_acknowledged(finished, returned)
        return Recovered(flagged, returned.count, returned.queues, unfinished)

    def _forget_acknowledged(self, finished: Iterable[tuple[str, str]], returned: PutBack) -> None:
        """Forget what finished and did not come back: it was acknowledged, no copy will ask for it again."""
        if returned.mids is not None:
            self._ledger.messages.clean_up(pair for pair in finished if pair[0] not in returned.mids)

    def earlier_deaths(self, worker: str) -> set[str]:
        """Return the workers in which messages died before that ``worker`` was running."""
        running = (start for _, start, _ in self._queries.running() if start.worker == worker)
        known = [start.id for start in running if start.deliveries > 1 and start.phase != Phase.CLAIMED]
        return self._queries.died_before(known) if known else set()

    def _blow_to(self, starts: Iterable[Start]) -> Blow:
        """Return the blow that the death of their worker was for these starts."""
        together = sum(start.phase == Phase.RUNNING for start in starts)
        deaths = [self._queries.recent_deaths(seconds) for seconds in LATELY]
        return Blow(together, deaths=deaths, workers=len(self._queries.leases()))

    def _facts(self, start: Start, ended: Ended, incident: Incident, blow: Blow) -> dict[str, Any]:
        """Return the facts of one start alone, by the names of :class:`DeadStart`."""
        # If it is gone, the connections of all its processes were, and not only the main one's.
        may_live = ended is not Ended.DONE and incident.how != Silence.GONE
        lives = may_live and self._queries.child_lives(start)
        is_open = ended is Ended.NOT and not lives and start.phase != Phase.CLAIMED
        asks_history = is_open and (start.alone or start.phase == Phase.ADMITTING)
        asks_result = is_open and incident.cause not in causes.NOBODYS_FAULT
        task = self._app.tasks.get(start.task) if asks_result else None
        ran_s = max(0.0, (incident.died_at or 0.0) - start.at_ms / 1000) if start.at_ms else 0.0
        return {
            "history": self._queries.history(start.id) if asks_history else NO_HISTORY,
            "child_lives": lives,
            "blow": replace(blow, ran_s=ran_s, starts=start.deliveries),
            "succeeded": task is not None and self._results.has_success(task, start.id, start.at_ms),
        }

    def _known(self, start: Start, death: _Death) -> Known:
        """Return the journal's other facts about the death of one start."""
        hooks, complain = self._plugin.extensions.recall, self._plugin.complain
        worker = death.incident.worker
        evidence = amend(hooks, complain, death.evidence, worker, start.token, self._ledger)
        return {"release": death.incident.release, "evidence": evidence.encode()}

    def _interrupt(self, mid: str, start: Start, death: _Death, end: EndOfStart = NOTHING) -> None:
        frozen = death.incident.cause == causes.FROZEN
        with suppress(StaleDelivery):
            self._ledger.messages.interrupt(
                mid,
                start,
                cause=death.incident.cause,
                # Why it fell silent is not known; it must not go on like that for ever.
                failure=frozen and start.diverts == 1,
                incident=death.incident.incident,
                fence=death.fence,
                doubt=end.doubt,
                spoilt=end.spoilt,
                died_at=death.incident.died_at,
                known=self._known(start, death),
            )

    def _end(self, mid: str, start: Start, raw: bytes, end: EndOfStart, death: _Death) -> bool:
        """End one start of a dead worker; return whether its message was flagged.

        Raises:
            StaleDelivery: its message has a newer start.
        """
        if end.end not in (StartEnd.WAIT, StartEnd.FORGET, StartEnd.FINISH):
            # What finished left nothing to tell of, unless it failed.
            cause = end.cause or death.incident.cause
            hooks, reason = self._plugin.extensions.lost, f"its worker {start.worker} died"
            tell(hooks, self._plugin.complain, self._ledger, mid, start, cause, reason)
        match end.end:
            case StartEnd.FINISHED if start.alone:
                self._ledger.messages.acquit(mid, start, Guilt.UNPROVEN, copy=True)  # it may have retried
            case StartEnd.FORGET:
                self._ledger.messages.claim(mid, raw, None)
            case StartEnd.ROLL_BACK:
                cause = causes.REJECTED
                self._ledger.messages.rollback(
                    mid, start, cause=cause, fence=death.fence, known=self._known(start, death)
                )
            case StartEnd.INTERRUPT | StartEnd.TRY_AGAIN:
                self._interrupt(mid, start, death, end)
            case StartEnd.FINISH:
                self._ledger.messages.finish(mid, start, fence=death.fence, release=death.incident.release)
                if start.alone:
                    self._ledger.messages.acquit(mid, start, Guilt.CLEARED, copy=True)
            case StartEnd.STRIKE:
                return self._crash(mid, start, death, end.cause, shared=end.shared)
        return False

    def _crash(self, mid: str, start: Start, death: _Death, cause: str, *, shared: bool) -> bool:
        incident = death.incident.incident
        recorded = self._ledger.messages.crash(
            mid,
            start,
            cause=cause,
            shared=shared,
            incident=incident,
            fence=death.fence,
            died_at=death.incident.died_at,
            known=self._known(start, death),
        )
        if recorded.finished:
            return False
        if start.diverts:
            self._flagged(start.id, start.task, cause, recorded.history.crashes)
        return True

    def sweep_orphans(self, patience: float, fence: int) -> None:
        """End starts whose worker is unknown (Redis lost its lease): no message is to blame.

        Args:
            patience: seconds for which such a worker may still come back.

        Raises:
            Fenced: another monitor took over.
        """
        unknown = _Death(Incident(incident="", worker="", cause=causes.UNKNOWN), fence)
        under_way = set(self._queries.leases()) | set(self._queries.open_incidents())
        now, now_ms, seen = time.monotonic(), self._queries.now_ms(), self._orphans
        self._orphans = {}
        ended = set(self._queries.ended_tokens())  # before the starts: an end on record has its start there
        running = [(mid, start) for mid, start, _ in self._queries.running()]
        strays = ended - {start.token for _, start in running}
        if (
            forgotten := strays & self._strays
        ):  # they were there in the last sweep too: no worker asks for them
            self._ledger.messages.forget_ends(forgotten, fence)
        self._strays = strays - forgotten
        starts = [(mid, start) for mid, start in running if start.worker not in under_way]
        ends = self._queries.ends([start.token for _, start in starts])
        over: dict[str, list[tuple[str, str]]] = {}
        for (mid, start), end in zip(starts, ends, strict=True):
            unheard = now - self._orphans.setdefault(start.token, seen.get(start.token, now))
            if end is Ended.DONE:
                if unheard > REMEMBER:
                    self._ledger.messages.clean_up([(mid, start.token)])
                elif unheard > patience and now_ms - start.at_ms < JUST_NOW * 1000:
                    over.setdefault(start.worker.rpartition("/")[2], []).append((mid, start.token))
            elif unheard > patience and not self._queries.child_lives(start):
                self._interrupt(mid, start, unknown)
        for boot_id, finished in over.items():
            self._forget_acknowledged(finished, put_back(self._app, boot_id, ()))

    @property
    def has_strays(self) -> bool:
        """Whether the last sweep saw what another one may have to end, or to put back."""
        return bool(self._orphans or self._strays or self._ownerless)

    def sweep_unacknowledged(self) -> None:
        """Put back what lies under the name of a worker that is not known any more (NEW-9).

        It got there after that worker had been recovered from: by a write that was long on its way, or by
        a Redis that has lost its last moments.
        """
        receivers = owners(self._app)  # before the workers: one that receives has a lease
        known = {*self._queries.leases(), *self._queries.open_incidents()}
        ownerless = receivers - {worker.rpartition("/")[2] for worker in known}
        for boot_id in ownerless & self._ownerless:
            put_back(self._app, boot_id, ())
        self._ownerless = ownerless
