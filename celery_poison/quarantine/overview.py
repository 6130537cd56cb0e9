"""How things stand: what ``celery poison status`` says, and what else wants to know it at one glance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from celery import Celery

from celery_poison.blocks import Proposal, read_rules
from celery_poison.errors import ConfigurationError
from celery_poison.ledger import policies
from celery_poison.ledger.connection import check_server
from celery_poison.ledger.queries import Queries
from celery_poison.model import GateRecord, WorkerRecord
from celery_poison.plugin import plugin_of
from celery_poison.quarantine.owner import check_owner, without_secrets
from celery_poison.quarantine.stranded import Stranded, find_stranded
from celery_poison.settings import Settings
from celery_poison.text import count_of, duration, when

#: Messages that nobody works on, each with a warning of its own.
_STUCK_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Counts, workers, and what is wrong.

    Attributes:
        ledger: where it lives, without secrets.
        running: messages that a worker has in its hands at this moment (DLNG).
        parked: messages that wait in the ledger until an earlier start of theirs ends (TBDL).
        blocked: rules on the block list that are in force.
        proposal: what the pipeline proposes and waits for a person.
        gate: the fleet gate: whether deaths convict at this moment.
        observe_only: whether this app only observes (``poison_observe_only``).
        would_quarantine: cause -> messages that would have been quarantined while it did.
        monitor: the incarnation that watches the others, or the empty string.
        open_incidents: dead workers that are still being cleaned up after, and their incidents.
        stranded: messages that nobody works on.
        inactive_settings: set, and without effect in this version.
        warnings: what is wrong, in sentences, the gravest first.
    """

    ledger: str
    namespace: str
    quarantined: int
    failed: int
    candidates: int
    running: int
    parked: int
    journal: int
    blocked: int
    proposal: Proposal | None
    gate: GateRecord
    observe_only: bool
    would_quarantine: dict[str, int]
    workers: list[WorkerRecord]
    monitor: str
    open_incidents: dict[str, str]
    stranded: Stranded
    inactive_settings: list[str]
    warnings: list[str] = field(default_factory=list)

    @property
    def states(self) -> dict[str, int]:
        """Messages by state; those of TBDL and DLVD without a history are not on record."""
        return {"NDLV": self.quarantined, "FAIL": self.failed, "DLNG": self.running}

    @property
    def alive(self) -> int:
        return sum(worker.alive for worker in self.workers)

    @property
    def dead(self) -> int:
        return len(self.workers) - self.alive

    @property
    def stopping(self) -> int:
        return sum(worker.alive and worker.stopping for worker in self.workers)

    @property
    def unguarded(self) -> int:
        """Tasks that the present workers ran while the ledger was away or refused their starts."""
        return sum(worker.unguarded for worker in self.workers)

    @property
    def ledger_errors(self) -> int:
        return sum(worker.ledger_errors for worker in self.workers)

    def as_dict(self) -> dict[str, Any]:
        """Return what ``status --json`` prints."""
        shown = asdict(self)
        del shown["stranded"]
        shown["workers"] = {"alive": self.alive, "dead": self.dead, "stopping": self.stopping}
        return {
            **shown,
            "proposal": self.proposal and self.proposal.summary(),
            "stuck": [stuck.as_dict() for stuck in self.stranded.oldest],
            "stuck_messages": self.stranded.counts,
            "states": self.states,
            "unguarded": self.unguarded,
            "ledger_errors": self.ledger_errors,
        }


def overview(app: Celery) -> Overview:
    """Look at the ledger of ``app``.

    Raises:
        ConfigurationError: a setting is wrong, so that nobody knows where to look.
        LedgerUnavailable: Redis is away.
    """
    plugin = plugin_of(app)
    ledger = plugin.open_ledger()
    queries = Queries(ledger)
    settings = plugin.settings
    totals: dict[str, Any] = queries.totals()  # by the names of fields
    workers = queries.workers(int(settings.activation_interval * 1000))
    monitor, incidents, gate = queries.monitor(), queries.open_incidents(), queries.gate()
    stranded = find_stranded(app)
    _, raw, now = policies.read_blocks(ledger)
    warnings = [
        *_gate_warnings(gate),
        *_complaints(app, queries),
        *_worker_warnings(workers, monitor, incidents),
        *_stuck_warnings(stranded),
        *_trial_warnings(settings, workers),
        *(f"{name} is set, but this version does not act on it yet" for name in settings.inactive()),
    ]
    return Overview(
        ledger=without_secrets(plugin.ledger_url),
        namespace=settings.namespace,
        **totals,
        blocked=len(read_rules(raw, now)[0]),
        proposal=Proposal.read(*policies.waiting_proposal(ledger)),
        gate=gate,
        observe_only=settings.observe_only,
        would_quarantine=queries.would_quarantine(),
        workers=workers,
        monitor=monitor,
        open_incidents=incidents,
        stranded=stranded,
        inactive_settings=settings.inactive(),
        warnings=warnings,
    )


def _complaints(app: Celery, queries: Queries) -> Iterator[str]:
    try:
        check_owner(app, queries)
    except ConfigurationError as error:
        yield str(error)
    try:
        yield from check_server(plugin_of(app).open_ledger().client)
    except ConfigurationError as error:
        yield str(error)


def _gate_warnings(gate: GateRecord) -> Iterator[str]:
    if gate.closed:
        yield (
            f"the fleet gate is closed: {gate.story} in a short time, so that only a death on trial convicts;"
            " it opens by itself, or by `celery poison gate lift`"
        )


def _stuck_warnings(stranded: Stranded) -> Iterator[str]:
    for stuck in stranded.oldest[:_STUCK_TOLD]:
        which = f"{stuck.id} of queue {stuck.queue or '?'} since {when(stuck.since)} ({duration(stuck.age)})"
        yield f"nobody works on {which}: {stuck.why}; cure: {stuck.cure}"
    if (more := stranded.total - _STUCK_TOLD) > 0:
        yield f"nobody works on {count_of(more, 'more message')}: celery -A proj poison status --json"
    if stranded.unread:
        yield stranded.unread


def untried(settings: Settings, workers: list[WorkerRecord]) -> tuple[str, str] | None:
    """Return what is wrong with a trial queue that nobody serves, and its cure; None if all is well."""
    queue = settings.trial_queue
    if settings.trial != "queue" or settings.observe_only:
        return None
    if any(w.alive and not w.stopping and queue in w.queues.split(",") for w in workers):
        return None
    said = f"poison_trial='queue', and no live worker consumes {queue!r}: suspects wait there and do not run"
    return said, f"start `celery -A proj worker -Q {queue} -c 1`"


def _trial_warnings(settings: Settings, workers: list[WorkerRecord]) -> Iterator[str]:
    if wrong := untried(settings, workers):
        yield "; ".join(wrong)


def _worker_warnings(workers: list[WorkerRecord], monitor: str, incidents: dict[str, str]) -> Iterator[str]:
    alive = [worker for worker in workers if worker.alive]
    if not alive:
        yield "no worker is alive: nothing runs, and nobody puts back what dead workers held"
    elif not monitor:
        yield "no worker holds the monitor's lock: dead workers are not noticed at this moment"
    for worker in workers:
        if not worker.alive:
            yield f"worker {worker.worker} is silent"
    for dead, incident in incidents.items():
        yield f"worker {dead} died and its messages are still being put back (incident {incident})"
    if unguarded := sum(worker.unguarded for worker in workers):
        yield f"{unguarded} tasks ran unguarded: their starts or ends did not reach the ledger safely"
    if errors := sum(worker.ledger_errors for worker in workers):
        yield f"workers counted {errors} errors of the ledger; their logs say which"
