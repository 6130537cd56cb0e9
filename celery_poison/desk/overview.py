"""How things stand: what ``celery poison status`` says, and what else wants to know it at one glance."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from celery_poison import causes
from celery_poison.basics.parts import Panel
from celery_poison.basics.text import argument, command, count_of, ordinal, short, some_of, span
from celery_poison.causes import Evidence, place_in
from celery_poison.desk.queues import Backlog, Deaf
from celery_poison.desk.stranded import Stranded
from celery_poison.ledger.fleet_model import GateRecord, Incident, WorkerRecord
from celery_poison.ledger.second_person import Wish
from celery_poison.ledger.views import Lately
from celery_poison.model import MessageRecord, Record
from celery_poison.portrait import STUCK, Condition

#: Seconds after which errors are over that nothing was added to.
FADED = 600


class Level(StrEnum):
    """How things stand, in a word."""

    WELL = "well"
    DECIDE = "decide"
    """A person must decide."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Record):
    """A worker that does not work any more: ``how``, and ``since`` when, in seconds of Redis' clock.

    Attributes:
        incident: its death; empty: it is frozen or silent.
    """

    worker: str
    how: str
    since: float | None
    incident: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Counts, workers, and what is wrong.

    Attributes:
        at: when this was read, in seconds of Redis' clock.
        ledger: where it lives, without secrets.
        oldest: what has been in quarantine for longest.
        on_trial: candidates that run at this moment; the others wait.
        suspected_since: when the oldest candidate was flagged, in seconds; None: there is none.
        running: messages that a worker has in its hands at this moment (DLNG).
        parked: messages that wait in the ledger until an earlier start of theirs ends (TBDL).
        leaving: messages in quarantine that leave it by themselves, to a destination or back to their queue.
        blocked: rules on the block list that are in force.
        asked: acts that wait for a second person (``poison_second_person``), the oldest first.
        process_deaths: cause -> task processes that died alone, ever; their worker lived on.
        panels: what extensions show.
        gate: the fleet gate: whether deaths convict at this moment.
        observe_only: whether this app only observes (``poison_observe_only``).
        would_quarantine: cause -> messages that would have been quarantined while it did.
        observed: those of them that go round still, the most deaths first.
        last_death: the last journalled death of a task process, while this app only observes; empty: none.
        deaths_allowed: deaths that quarantine a message of that task.
        lately: deaths of tasks in the last day.
        lost: workers that are frozen, silent or dead (for a day) whose node has not come back, newest first.
        worker_deaths: deaths of workers in the last day, newest first, at most twenty.
        ended_at: when the last task ended, in seconds; None: none did in an hour, or the journal has no ends.
        last_worker: which worker has ended or died last, and when; empty where none has.
        monitor: the incarnation that watches the others, or the empty string.
        open_incidents: dead workers that are still being cleaned up after, and their incidents.
        stranded: messages that no worker works on.
        deaf: workers that live and consume nothing, while messages wait for them.
        queues: what each queue has in store; empty where they were not asked for, and nothing has a limit.
        memory: bytes in this Redis: ``used`` of ``most`` (0: no limit), by ``unprocessable`` and ``parked``
            messages.
        faults: what is broken, in sentences, the gravest first.
        warnings: these, and what is merely doubtful.
    """

    at: float
    ledger: str
    namespace: str
    quarantined: int
    oldest: MessageRecord | None
    failed: int
    candidates: int
    on_trial: int
    suspected_since: float | None
    running: int
    parked: int
    leaving: int
    journal: int
    blocked: int
    asked: list[Wish]
    process_deaths: dict[str, int]
    panels: list[Panel]
    gate: GateRecord
    observe_only: bool
    would_quarantine: dict[str, int]
    observed: list[MessageRecord]
    last_death: dict[str, str]
    deaths_allowed: int
    lately: Lately
    lost: list[Lost]
    worker_deaths: list[Incident]
    ended_at: float | None
    workers: list[WorkerRecord]
    last_worker: str
    monitor: str
    open_incidents: dict[str, str]
    stranded: Stranded
    deaf: list[Deaf]
    queues: list[Backlog]
    memory: dict[str, int]
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def level(self) -> Level:
        if self.faults:
            return Level.BROKEN
        waits = self.quarantined or self.observed or self.asked or self._decisions
        return Level.DECIDE if waits else Level.WELL

    @property
    def verdict(self) -> list[str]:
        """Return the most urgent news, in one to three sentences."""
        sentences = []
        if self.quarantined:
            need = "message needs" if self.quarantined == 1 else "messages need"
            about = ""
            if oldest := self.oldest:  # else it has been decided about meanwhile
                age = span(self.at - (oldest.quarantined_at or self.at))
                which = f"{'oldest ' if self.quarantined > 1 else ''}{age}"
                task = f"task {oldest.task}, " if oldest.task else ""  # not every message names one
                about = f" ({which}, {task}{causes.short(oldest.cause)})"
            sentences.append(f"{self.quarantined} {need} a decision{about}")
        sentences += self._observing
        if self.asked:
            sentences.append(
                f"what {some_of({wish.actor for wish in self.asked})} asked for needs a second person"
            )
        sentences += self._decisions
        if self.faults:
            more = f" (and {len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
            sentences.append(f"broken: {self.faults[0]}{more}")
        workers = count_of(self.alive, "worker")
        if self.observe_only:
            return sentences or [f"observing: {workers}, no message would be in quarantine now"]
        if self.lost:
            return sentences or [f"nothing in quarantine: {workers} alive, {len(self.lost)} lost"]
        return sentences or [f"all is well: {workers}, nothing in quarantine"]

    @property
    def _decisions(self) -> list[str]:
        return [sentence for panel in self.panels for sentence in panel.decisions]

    def panel(self, name: str) -> Any:
        """Return the value of an extension's panel of this name; None: there is none."""
        return next((panel.value for panel in self.panels if panel.name == name), None)

    @property
    def _observing(self) -> list[str]:
        """What would be in quarantine at this moment if it were not only observed."""
        if not self.observed:
            return [self._deaths] if self.observe_only and self._deaths else []
        worst, number = self.observed[0], count_of(len(self.observed), "message")
        which = "most deaths: " if len(self.observed) > 1 else ""
        about = f"{which}{worst.task}, {causes.short(worst.cause)}, {count_of(worst.crashes, 'death')}"
        return [f"observing: {number} would be in quarantine ({about})"]

    @property
    def _deaths(self) -> str:
        """What has died though nothing goes round: a message that is acknowledged early dies once."""
        if not (number := sum(self.process_deaths.values())):
            return ""
        about = ""
        if last := self.last_death:
            place = place_in(Evidence.decode(last["evidence"]).source)
            parts = (causes.short(last["cause"]), last["task"], place)
            about = f" ({'the last: ' if number > 1 else ''}{', '.join(filter(None, parts))})"
        so_far = f"observing: {count_of(number, 'death')} so far{about}"
        return f"{so_far}; guarded, it would be caught at its {ordinal(self.deaths_allowed)}"

    @property
    def next(self) -> list[str]:
        """Return the commands to type now."""
        typed = ["poison groups"] if self.quarantined > 1 else []
        typed += [f"poison show {argument(short(self.oldest.id))}"] if self.oldest else []
        typed += [f"poison show {argument(short(record.id))}" for record in self.observed[:1]]
        if self.last_death and not (self.quarantined or self.observed):
            typed += [f"poison show {argument(short(self.last_death['id']))}"]
        typed += [words for panel in self.panels for words in panel.typed]
        return [command(words) for words in [*typed, *(["poison doctor"] if self.faults else [])]]

    @property
    def states(self) -> dict[str, int]:
        """Messages by state; those of TBDL and DLVD without a history are not on record."""
        return {"NDLV": self.quarantined, "FAIL": self.failed, "DLNG": self.running}

    @property
    def alive(self) -> int:
        return sum(worker.alive for worker in self.workers)

    @property
    def dead(self) -> int:
        return [worker.condition() for worker in self.workers].count(Condition.SILENT)

    @property
    def stopping(self) -> int:
        return sum(worker.alive and worker.stopping for worker in self.workers)

    @property
    def stuck(self) -> dict[str, int]:
        """Workers that do not work, by condition."""
        conditions = [worker.condition() for worker in self.workers]
        return {str(stuck): conditions.count(stuck) for stuck in STUCK}

    @property
    def guarded_tasks(self) -> int:
        return max((worker.guarded_tasks for worker in self.workers if worker.alive), default=0)

    @property
    def unguarded_tasks(self) -> list[str]:
        """Names of the tasks that some living worker runs without guarding them."""
        return sorted({name for worker in self.workers if worker.alive for name in worker.unguarded_tasks})

    @property
    def observed_tasks(self) -> list[str]:
        """Names of guarded tasks that some living worker only observes, since they acknowledge early."""
        return sorted({name for worker in self.workers if worker.alive for name in worker.observed_tasks})

    @property
    def unguarded(self) -> int:
        """Tasks that ran lately while the ledger was away or refused their starts."""
        return sum(worker.unguarded for worker in self._troubled)

    @property
    def ledger_errors(self) -> int:
        return sum(worker.ledger_errors for worker in self._troubled)

    @property
    def _troubled(self) -> list[WorkerRecord]:
        # A worker of an older version does not say when.
        return [w for w in self.workers if w.troubled_at is None or self.at - w.troubled_at < FADED]

    def as_dict(self) -> dict[str, Any]:
        """Return the object that ``status --json`` prints."""
        shown = asdict(self)
        for name in ("stranded", "observed", "panels", "last_death", "deaths_allowed", "worker_deaths"):
            del shown[name]
        shown["workers"] = {"alive": self.alive, "dead": self.dead, "stopping": self.stopping}
        shown["stuck_workers"] = self.stuck
        own = ("level", "next", "states", "guarded_tasks", "unguarded_tasks", "unguarded", "ledger_errors")
        return {
            **shown,
            **{name: getattr(self, name) for name in own},
            "verdict": "; ".join(self.verdict),
            "oldest": self.oldest and self.oldest.as_dict(),
            **{panel.name: panel.as_json for panel in self.panels},
            "stuck": [stuck.as_dict() for stuck in self.stranded.oldest],
            "stuck_messages": self.stranded.counts,
        }
