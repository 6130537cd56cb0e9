"""The typed records of one message: history, starts, parking, what it is in quarantine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple, Self

from celery_poison.basics.numbers import is_whole, milliseconds, whole
from celery_poison.causes import NO_EVIDENCE, Evidence, describe
from celery_poison.headers import known_as
from celery_poison.states import State


@dataclass(frozen=True, slots=True)
class Record:
    """A record that is shown as JSON, field by field."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Ended(StrEnum):
    """How a recorded start ended, as its own process wrote it down."""

    NOT = ""
    DONE = "D"
    ROLLED_BACK = "B"
    INTERRUPTED = "I"


class Guilt(StrEnum):
    """What the end of a run makes of the strikes of its task id.

    Attributes:
        CLEARED: they go.
        KEPT: they stay, and so does the flag: a retry goes on under them.
        UNPROVEN: they stay for a while, without the flag: nothing is left that could be tried.
    """

    CLEARED = "cleared"
    KEPT = "kept"
    UNPROVEN = "unproven"


class Phase(StrEnum):
    """The phase of a start, by its entry.

    Attributes:
        WENT_BACK: it has ended, and its message had gone back to the broker: a copy comes.
    """

    CLAIMED = "C"
    ADMITTING = "A"
    RUNNING = "R"
    WENT_BACK = "B"


@dataclass(frozen=True, slots=True)
class Limits:
    """What convicts: a task's ``max_crashes`` and ``max_failures``; with ``trials`` only a death alone.

    Without ``rerun`` nothing runs again that has begun.
    """

    max_crashes: int = 2
    max_failures: int = 5
    max_payload_bytes: int | None = None
    trials: bool = True
    rerun: bool = True


@dataclass(frozen=True, slots=True)
class History:
    """The counts of one lineage (task id); all zero for a message that never gave trouble.

    Attributes:
        proven: strikes for deaths in which nothing else can have been to blame.
        shared_blame: others ran beside it at its last death.
        doubt, spoilt: ends of workers beside its trials: their weight, and their number (``doubts``).
        tried: strikes for deaths on trial.
        doubted: it died with its worker while the fleet gate was closed, as many others did.
        evidence: of its last death, as :class:`Evidence` is encoded.
        old_strikes, old_failures: those of them that a person has released it with: they convict no more.
        cut_off, cut_off_by: mid of the last message that began and did not end, and the cause.
        failed_before: its failures until then.
    """

    deliveries: int = 0
    crashes: int = 0
    strikes: int = 0
    failures: int = 0
    candidate: bool = False
    probation: bool = False
    shared_blame: bool = False
    cause: str = ""
    proven: int = 0
    spoilt: int = 0
    doubt: int = 0
    tried: int = 0
    doubted: bool = False
    evidence: str = ""
    old_strikes: int = 0
    old_failures: int = 0
    cut_off: str = ""
    cut_off_by: str = ""
    failed_before: int = 0


NO_HISTORY = History()


class Attempt(NamedTuple):
    """The history of the message that is running, as ``self.request.poison`` (WAS-2, EMS-7).

    Attributes:
        deliveries: starts of this task id, this one included.
        crashes: deaths it was running in; never reset.
        failures: times it was put back.
        redelivered: this message was delivered before, whether it was started or not: by the broker, or as
            what was parked, or released from quarantine.
        candidate: it is flagged as a blacklist candidate.
        on_trial: it runs alone, so that its death would convict it.
        last_cause: what its last run died of (``signal:9``, ``oom``, ...), or ``failure`` where that raised
            and ``keep_failures`` is set; empty where there was none.
        found: what is known about that, as :class:`Evidence` is encoded.
    """

    deliveries: int = 1
    crashes: int = 0
    failures: int = 0
    redelivered: bool = False
    candidate: bool = False
    on_trial: bool = False
    last_cause: str = ""
    found: str = ""

    @property
    def evidence(self) -> Evidence:
        """The evidence of the end of its last run; every field is empty where it is not known."""
        return Evidence.decode(self.found) if self.found else NO_EVIDENCE

    @property
    def memory_kb(self) -> int | None:
        """The most memory that its last run's process had when that died, in KiB; None: not known."""
        return self.evidence.rss_kb

    @property
    def has_history(self) -> bool:
        """Whether the ledger keeps a record of this task id."""
        return self.deliveries > 1 or self.candidate


FIRST = Attempt()

#: What a start says about what runs beside it: nothing of its worker's, or its worker, which goes on
#: with other work, while the start is in a cell (``cells``). 0: anything.
ALONE, IN_CELL = 1, 2


#: For what is written for every task: ``json.dumps`` would make an encoder each time.
_compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Start(NamedTuple):
    """One start of one message: the value of its field in the ``running`` hash, as a JSON array.

    The order is part of ledger schema 1, and that of ``lua/_start.lua``.

    Attributes:
        phase: a word of :class:`Phase`.
        token: of this start; a process with an older one may not decide about its message any more.
        worker: name of its worker's incarnation, *node/boot id*.
        pid: of the process that runs it.
        at_ms: when it began, in milliseconds since 1970 by the clock of its machine; 0 before.
        deliveries: starts of its task id, this one included.
        alone: what runs beside it: 0 anything, else :data:`ALONE` or :data:`IN_CELL`.
        id: its task id.
        queue: that its message was sent to.
        payload_bytes: size of the body as received; 0 where it was not measured.
        diverts: 1 if its message is still the broker's when its task dies.
    """

    phase: str
    token: str
    worker: str
    pid: int = 0
    at_ms: int = 0
    deliveries: int = 1
    alone: int = 0
    id: str = ""
    task: str = ""
    queue: str = ""
    max_crashes: int = 0
    max_failures: int = 0
    payload_bytes: int = 0
    diverts: int = 1

    @classmethod
    def of(
        cls,
        token: str,
        worker: str,
        id: str,
        task: str,
        *,
        phase: Phase = Phase.RUNNING,
        diverts: bool = True,
        **known: Any,
    ) -> Self:
        """Make a start; what is left out is not known, or does not matter to whom it is told."""
        return cls(str(phase), token, worker, id=known_as(id), task=task, diverts=int(diverts), **known)

    @classmethod
    def decode(cls, raw: bytes | str) -> Self:
        """Read it; ValueError: it is none."""
        try:
            return cls._whole(json.loads(raw))
        except (TypeError, RecursionError) as error:
            raise ValueError(f"{raw!r:.80} is no start") from error

    @classmethod
    def _whole(cls, fields: Any) -> Self:
        start = cls(*fields)
        if not all(map(isinstance, start, _OF_START)):
            raise TypeError("a field is of another type")
        return start

    def encode(self) -> bytes:
        return _compact(self).encode("utf-8", "backslashreplace")

    @property
    def limits(self) -> Limits:
        return Limits(self.max_crashes, self.max_failures)

    @property
    def is_in_cell(self) -> bool:
        return self.alone >= IN_CELL

    @property
    def has_begun(self) -> bool:
        """Whether a process has taken it up: some of it may have run."""
        return self.phase == Phase.RUNNING and self.pid > 0

    def in_phase(self, phase: Phase) -> Start:
        return self._replace(phase=phase.value)


_TEXTS_OF_START = frozenset({"phase", "token", "worker", "id", "task", "queue"})
_OF_START = tuple(str if name in _TEXTS_OF_START else int for name in Start._fields)


class ParkingState(StrEnum):
    """Where a parking stands."""

    WAITING = "waiting"
    PUBLISHED = "published"
    FINISHED = "finished"
    KEPT = "kept"


class Parked(NamedTuple):
    """One message that was parked: the value of its field in the ``parked`` hash, as a JSON array.

    Attributes:
        number: the newest parking's, raised each time; copies that earlier ones published are void.
        start: of the copy that was parked; it never began.
    """

    state: ParkingState
    number: int
    start: Start

    @classmethod
    def decode(cls, raw: bytes | str) -> Self:
        """Read it; ValueError: it is none."""
        try:
            state, number, start = json.loads(raw)
            return cls(ParkingState(state), int(number), Start._whole(start))
        except (TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{raw!r:.80} is no parking") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """The original message, byte for byte, as quarantine keeps it and release publishes it.

    Attributes:
        body: as received, before decompression.
        headers, properties: as received; kombu's JSON keeps dates, bytes and UUIDs apart.
    """

    body: bytes
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecord:
    """The ledger's record of one message; the JSON message object of the command line.

    Attributes:
        pid, runtime_ms, evidence: of its last death: the process, how long it had run, what else is known.
        arguments: in quarantine, of a body in JSON: a short line, without what ``poison_redact`` hides.
        edited_from, edited_to: mids: of the original of a changed copy, and the other way round.
        destination: the queue that it goes to from quarantine by itself, or went to: then
        sent_at: when that was, and its body is there alone.
        retry_at: when it goes back to its own queue by itself.
        releases_left: how often at most, where a person has scheduled it: ``actor``, with ``note``.
        told: its caller has its failure already (``tell="conviction"``).
        not_rerun: it has begun, and its task says ``rerun=False``: a release asks whether it may run again.
    """

    id: str
    mid: str
    task: str
    queue: str
    state: str
    candidate: bool = False
    cause: str = ""
    deliveries: int = 0
    crashes: int = 0
    strikes: int = 0
    failures: int = 0
    fingerprint: str = ""
    payload_bytes: int = 0
    worker: str = ""
    first_seen: float | None = None
    last_seen: float | None = None
    quarantined_at: float | None = None
    reason: str = ""
    incident: str = ""
    probation: bool = False
    releases: int = 0
    resolution: str = ""
    actor: str = ""
    note: str = ""
    pid: int = 0
    runtime_ms: int = 0
    evidence: Evidence = NO_EVIDENCE
    arguments: str = ""
    edited_from: str = ""
    edited_to: str = ""
    destination: str = ""
    sent_at: float | None = None
    retry_at: float | None = None
    releases_left: int = 0
    not_rerun: bool = False
    told: bool = False

    @classmethod
    def from_hash(cls, raw: Mapping[str, str], state: State) -> Self:
        """Build a record from a ``lineage`` or ``message`` hash of the ledger."""
        # Once for each message that is read: what is not there is left to the defaults.
        values = {name: READERS[name](text) for name, text in raw.items() if text and name in READERS}
        if broken := [name for name in _NUMBERS if raw.get(name) and not is_whole(raw[name])]:
            values["reason"] = f"its record is damaged ({', '.join(broken)}): {raw.get('reason', '')}"
        return cls(**{"id": "", "mid": "", "task": "", "queue": "", **values, "state": state.value})

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON message object of the command line's contract."""
        return {**asdict(self), "evidence": self.evidence.as_dict()}

    @property
    def story(self) -> str:
        """One plain sentence about why the message is where it is."""
        return self.reason or (describe(self.cause) if self.cause else "")


#: What makes a value of the text of each field, by its type.
_OF_TYPE: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": whole,
    "bool": "1".__eq__,
    "float | None": milliseconds,
    "Evidence": Evidence.decode,
}
READERS = {field.name: _OF_TYPE[str(field.type)] for field in fields(MessageRecord)}
_NUMBERS = tuple(name for name, read in READERS.items() if read in (whole, milliseconds))
_COUNTS = {field.name: _OF_TYPE[str(field.type)] for field in fields(History)}


def history_of(raw: Mapping[str, str]) -> History:
    """Return the counts in a ``lineage`` hash; an empty hash is a message without a history."""
    told = {**raw, "shared_blame": "1" if raw.get("blame") == "shared" else ""}
    told["doubted"] = "" if raw.get("doubted", "0") == "0" else "1"
    return History(**{name: read(told[name]) for name, read in _COUNTS.items() if told.get(name)})
