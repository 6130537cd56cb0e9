"""A guarded request on its way: it goes to the pool with a ticket, to a target that records its start.

It is in one :class:`Stage` at a time. docs/life-of-a-message.md draws the ways between them, and a test holds
that against ``WAYS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any
from weakref import ref

from celery.exceptions import TaskRevokedError
from celery.worker import state
from celery.worker.request import Request

from celery_poison.basics.parts import Hold
from celery_poison.cells.pool import Cells
from celery_poison.headers import FAILURES, mid_of
from celery_poison.model import ALONE, FIRST, IN_CELL, NO_HISTORY, Phase, Start
from celery_poison.rules.doubts import needs_idle_worker
from celery_poison.rules.failures import last_trouble
from celery_poison.upstream.acks import acknowledging
from celery_poison.worker.blocklist import Checker
from celery_poison.worker.broadcasts import Broadcasts
from celery_poison.worker.child import run_fast, run_plain
from celery_poison.worker.delivery import Delivery, attempt_of, size_of, take_our_headers
from celery_poison.worker.inflight import DeferredCleanup, InFlight
from celery_poison.worker.outcome import Outcomes
from celery_poison.worker.pool_processes import Exits
from celery_poison.worker.recorder import Ticket
from celery_poison.worker.rejoin import Rejoin
from celery_poison.worker.site import Site


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RequestNeeds(Site):
    """The parts that the requests of a worker work with: its site, and more.

    Celery makes the requests: they find this by their app and host name (:func:`needs_of`).

    Attributes:
        holds: what keeps messages from beginning.
        contained: whether tasks share this process.
    """

    holds: Sequence[Hold]
    inflight: InFlight
    rejoin: Rejoin
    cells: Cells
    checker: Checker
    exits: Exits
    outcomes: Outcomes
    deferred_cleanup: DeferredCleanup
    broadcasts: Broadcasts
    contained: bool


#: Where an app has them.
_NEEDS = "_poison_needs"


def _needs_by_node(app: Any) -> dict[str, RequestNeeds]:
    by_node: dict[str, RequestNeeds] = vars(app).setdefault(_NEEDS, {})
    return by_node


def serve_requests(app: Any, hostname: str, needs: RequestNeeds) -> None:
    """Let the requests of a worker of this process find what they work with."""
    _needs_by_node(app)[hostname] = needs


def needs_of(app: Any, hostname: str) -> RequestNeeds | None:
    """Return the parts for the requests of that worker; None where no worker here guards."""
    by_node: dict[str, RequestNeeds] = vars(app).get(_NEEDS, {})
    if hostname not in by_node and len(by_node) == 1:  # made by a strategy that names no worker
        return next(iter(by_node.values()))
    return by_node.get(hostname)


def release_requests(app: Any, hostname: str) -> bool:
    """Let go of a worker that has left; return whether another one of this app is here."""
    known = _needs_by_node(app)
    known.pop(hostname, None)
    return bool(known)


class Stage(Enum):
    """Where a request stands; the values are the words of docs/life-of-a-message.md."""

    WAITING = "waiting"
    """It has not gone to the pool."""
    RUNNING = "running"
    """It runs, or was handed to the pool to run."""
    ENDED = "ended"
    """Its own process has written down how it ended; Celery settles the message."""
    LOST = "lost"
    """It ended without a word of its own process; Celery settles the message."""
    HELD = "held"
    """The message is neither acknowledged nor put back before its outcome is on record."""
    NOTED = "noted"
    """Its outcome is being noted beside, and Celery settles the message."""
    OVERTAKEN = "overtaken"
    """The message has another owner: nothing of this run counts."""
    SETTLED = "settled"
    """Nothing is left to write down."""

    # Enum's own is a function of Python, called for each step of each message.
    __hash__ = object.__hash__


#: From where to where a request may go. What would go elsewhere stays where it is.
WAYS: dict[Stage, frozenset[Stage]] = {
    Stage.WAITING: frozenset({Stage.RUNNING, Stage.HELD, Stage.SETTLED}),
    # To itself: no cell could be had, and it goes to the pool.
    Stage.RUNNING: frozenset(Stage) - {Stage.WAITING},
    Stage.ENDED: frozenset({Stage.SETTLED}),
    Stage.LOST: frozenset({Stage.HELD, Stage.NOTED, Stage.SETTLED}),
    Stage.HELD: frozenset({Stage.LOST, Stage.OVERTAKEN, Stage.SETTLED}),
    Stage.NOTED: frozenset({Stage.SETTLED}),
    Stage.OVERTAKEN: frozenset(),
    Stage.SETTLED: frozenset(),
}


class SentRequest(Request):
    """Celery's request, which knows the start of its task.

    Celery derives a class of its own from this one for every task, and overrides two methods in it;
    those overrides are taken out again, since they are optimised copies of what is inherited.

    Attributes:
        poison: notes about a delivery that needed care, or None.
        stage: where it stands.
        epoch: number of the broker connection by which it was sent to the pool.
        is_refused_by_cells: it could not be tried in a cell.
        is_broadcast: every worker gets a copy of it: it runs as without us.
    """

    stage = Stage.WAITING
    epoch = -1
    is_refused_by_cells = False
    _ticket: Ticket | None = None
    #: Of a thread of the pool, which may not have begun with it.
    _future: Any = None
    #: Those that are told of its run.
    _holds: Sequence[Hold] = ()
    #: It was put back before it had begun: its queue or task is paused, or its worker leaves.
    _went_back = False
    _cells: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ == Request.__module__:
            for name in ("execute_using_pool", "on_success"):
                if name in vars(cls):
                    delattr(cls, name)

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self.equip()

    def equip(self) -> None:
        """Take what it works with from its message and the plugin of its app."""
        if self._decoded:
            take_our_headers(self._request_dict, self._message.headers or {})
        self.poison: Delivery | None = getattr(self._message, "poison", None)
        needs: Any = needs_of(self._app, self.hostname)
        self.needs: RequestNeeds = needs  # None where no worker guards: then nothing below asks
        queue = getattr(self._message, "queue_name", None)
        self.is_broadcast = (
            needs is not None and queue not in needs.broadcasts.ordinary and needs.broadcasts(self._message)
        )
        if self.is_broadcast:
            self._task: Any = self.needs.broadcasts.task(self._task)
        elif self.is_acknowledged_late and not self._task.acks_late:
            self._task = acknowledging(self._task, late=True, reject_on_worker_lost=True)

    def _enter(self, stage: Stage) -> bool:
        """Go on to ``stage``; False where no way leads there, and it stays where it is."""
        if stage not in WAYS[self.stage]:
            return False
        self.stage = stage
        return True

    # --- what others ask -----------------------------------------------------------------------

    @property
    def runs_alone(self) -> bool:
        """Whether nothing may run beside it."""
        return self.poison is not None and self.poison.alone and not self.needs.settings.observe_only

    @property
    def alone(self) -> int:
        """What its entry in the ledger says about what runs beside it."""
        if not self.runs_alone:
            return 0
        return IN_CELL if self._cells else ALONE

    @property
    def is_in_cell(self) -> bool:
        """Whether it takes no slot of the pool."""
        return self._cells is not None

    @property
    def needs_idle_worker(self) -> bool:
        """Whether nothing may run in its worker at all: workers have ended beside its last trials."""
        return self.poison is not None and needs_idle_worker(self.poison.history)

    @property
    def is_acknowledged_late(self) -> bool:
        """Whether it is acknowledged late, whatever its task says."""
        delivery = self.poison
        return delivery is not None and delivery.is_acknowledged_late and not self.needs.settings.observe_only

    @property
    def diverts(self) -> bool:
        """Whether its message is still the broker's when its task dies."""
        return bool(self._task.acks_late)

    @property
    def consumed_from(self) -> str:
        """The queue that its message was consumed from; empty where no transport tells."""
        return getattr(self._message, "queue_name", None) or ""

    @property
    def mid(self) -> str:
        assert self._ticket is not None
        return self._ticket.mid

    @property
    def poison_token(self) -> str:
        """Of its start; empty before."""
        return self._ticket.token if self._ticket else ""

    def start(self) -> Start:
        """Return the start as this process knows it, for the scripts that end it."""
        ticket = self._ticket
        assert ticket is not None
        policy = self.needs.policies[self._type][0]
        if policy.by_queue:
            policy = policy.at(ticket.queue)
        return Start.of(
            ticket.token,
            self.needs.me.worker,
            self.id,
            self._type,
            queue=ticket.queue,
            pid=self.worker_pid or 0,
            at_ms=int((self.time_start or 0) * 1000),
            deliveries=ticket.attempt.deliveries,
            alone=self.alone,
            max_crashes=policy.max_crashes,
            max_failures=policy.max_failures,
            payload_bytes=ticket.payload_bytes,
            diverts=self.diverts,
        )

    # --- on its way to the pool ----------------------------------------------------------------

    def execute_using_pool(self, pool: Any, **kwargs: Any) -> Any:
        """As in Celery, but the pool runs our target, which records the start before any user code."""
        if self.needs is None or self.is_broadcast:
            return super().execute_using_pool(pool, **kwargs)
        if not self._may_begin(pool):
            return None
        ticket = self._ticket = self._make_ticket()
        self._stop_if_blocked()
        self.epoch = self.needs.loop.epoch
        self._cells = pool if pool is self.needs.cells else None
        self.needs.inflight.went_to_pool(ticket.token, self)
        if self.needs.rejoin.is_fenced:  # asked last: who puts it back looks first at what went to the pool
            self.needs.inflight.pool_refused(ticket.token)
            return state.task_ready(self)  # it waited for a place in the pool while it was put back
        self._enter(Stage.RUNNING)
        task, (hard, soft) = self._task, self.time_limits
        result = pool.apply_async(
            run_fast if self._app.use_fast_trace_task else run_plain,
            args=(
                *(ticket.tell(), self._type, self.id, self._request_dict),
                *(self._body, self._content_type, self._content_encoding),
            ),
            accept_callback=self.on_accepted,
            timeout_callback=self.on_timeout,
            callback=self.on_success,
            error_callback=self.on_failure,
            soft_timeout=soft or task.soft_time_limit,
            timeout=hard or task.time_limit,
            correlation_id=self.id,
        )
        self._apply_result = ref(result) if result is not None else None
        if self.needs.contained:
            self._future = getattr(result, "f", None)
        return result

    def _may_begin(self, pool: Any) -> bool:
        if self._went_back:
            self._give_place_back(pool)
            return False
        if self.revoked():
            raise TaskRevokedError(self.id)
        if not getattr(self._message, "is_mine", True):
            # It waited for a place in the pool while it was put back, with its connection or by who took this
            # worker for dead. The places are counted anew with the next connection, in a moment.
            state.task_ready(self)
            return False
        plan = self.needs.plans.known.get(self._type)
        self._holds = self.needs.holds if plan is None else plan.holds
        if self._holds and self.put_back_if_paused():
            self._give_place_back(pool)
            return False
        for hold in self._holds:
            hold.begins(self.consumed_from, self)
        return True

    def put_back_if_paused(self) -> bool:
        """Put its message back if it has not begun, and may not now; return whether."""
        if self.is_broadcast or not self.needs.holds:
            return False
        queue = self.consumed_from
        for hold in self.needs.holds:
            if hold.stops(queue, self._type, self):
                break
        else:
            return False
        return self.put_back_unbegun()

    def put_back_unbegun(self) -> bool:
        """Put its message back if it has not begun; return whether."""
        if self.is_broadcast or self.needs is None or self.needs.settings.observe_only:
            return False
        if self.acknowledged or not getattr(self._message, "is_mine", True):
            return False
        if self._ticket is not None:
            if self._future is None or not self._future.cancel():
                return False
            self.left_queue_of_pool()
        self._went_back = self._message.to_front = self._message.is_blameless = True
        state.task_ready(self)
        self.reject(requeue=True)
        return True

    def _give_place_back(self, pool: Any) -> None:
        """Let another have its place in the pool.

        Soon, and not by an error as in Celery: of many that go back each would be called by the one before.
        """
        semaphore = getattr(self.needs.loop.consumer.controller, "semaphore", None)
        if semaphore is not None and pool is not self.needs.cells:
            self.needs.loop.call_in_loop(semaphore.release)

    def _make_ticket(self) -> Ticket:
        delivery = self.poison
        if delivery is None:
            queue = getattr(self._message, "queue_name", None) or self._delivery_info["routing_key"] or ""
            headers, attempt = self._request_dict, FIRST
            if FAILURES in headers:
                cause, found = last_trouble(NO_HISTORY, headers[FAILURES])
                attempt = FIRST._replace(last_cause=cause, found=found)
            token = self.needs.me.next_token()
            return Ticket(mid_of(headers), token, queue, attempt, size_of(self._message))
        # From here on the entry is the pool process's to write.
        delivery.start = delivery.start.in_phase(Phase.RUNNING)
        start = delivery.start
        attempt, size = attempt_of(delivery), start.payload_bytes
        return Ticket(delivery.mid, start.token, start.queue, attempt, size, self.is_acknowledged_late)

    def left_queue_of_pool(self) -> None:
        """Note that a request waited for a thread of the pool, and will not begin."""

    def pool_refused(self) -> None:
        """The pool did not take it."""

    def _stop_if_blocked(self) -> None:
        """Raise TaskRevokedError to Celery if it may not go to the pool after all."""
