"""What a message died of: short stable words for people, evidence for machines (NEW-2)."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Final, Self, TypeVar

from celery_poison.basics.rooms import rooms_with

A = TypeVar("A")

OOM: Final = "oom"
TIME_LIMIT: Final = "time_limit"
MEMORY_ERROR: Final = "memory_error"
SYSTEM_EXIT: Final = "system_exit"
WORKER_LOST: Final = "worker_lost"
RECEIVE: Final = "receive"
PAYLOAD: Final = "payload"
BLOCKED: Final = "blocked"
FAILURES: Final = "failures"
REJECTED: Final = "rejected"
REQUESTED: Final = "requested"
FAILURE: Final = "failure"
FROZEN: Final = "frozen"
SHUTDOWN: Final = "shutdown"
NOT_REACHED: Final = "not_reached"
EVICTION: Final = "eviction"
UNKNOWN: Final = "unknown"
UNKNOWN_TASK: Final = "unknown_task"
UNDECODABLE: Final = "undecodable"
MALFORMED: Final = "malformed"
NOT_A_TASK: Final = "not_a_task"
QUEUE_FULL: Final = "queue_full"
HELD: Final = "held"


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One cause: its words, and every set that it belongs to.

    Attributes:
        sentence: completes "the message …".
        decision: the usual one about a message in quarantine for it, as in docs/howto/playbook.md;
            empty: no message is.
        is_death: starts end by it.
        is_of_worker: their worker ends with them; at all others one process dies, and its worker lives on.
        is_nobodys_fault: the death of a whole worker for which no message on board is to blame.
        is_failure: counts as a failure, too.
        is_conviction: False: a message may be in quarantine for it without having been convicted of anything.
        is_unprocessable: the message never reached a task; plain Celery drops it (NEW-5).
        is_reported: Celery has told the caller already.
    """

    sentence: str
    decision: str = ""
    is_death: bool = False
    is_of_worker: bool = False
    is_nobodys_fault: bool = False
    is_failure: bool = False
    is_conviction: bool = True
    is_unprocessable: bool = False
    is_reported: bool = False


# fmt: off
#: Every cause but ``signal:N`` and ``exit:N``.
ROWS: Final[Mapping[str, CauseRow]] = {
    OOM: CauseRow("was killed for using too much memory",
        "give it more memory or a smaller input, then release", is_death=True),
    TIME_LIMIT: CauseRow("ran past its hard time limit",
        "raise the limit or repair the task, then release", is_death=True, is_failure=True, is_reported=True),
    MEMORY_ERROR: CauseRow("ran out of memory (MemoryError)",
        "give it more memory or a smaller input, then release", is_death=True),
    SYSTEM_EXIT: CauseRow("called sys.exit() inside the worker",
        "repair the code, then release", is_death=True),
    WORKER_LOST: CauseRow("was running when its whole worker died",
        "look at how its container ended: out of memory? Then release or fail",
        is_death=True, is_of_worker=True),
    RECEIVE: CauseRow("killed its worker while it was being received, before any task code ran",
        "read it before you release it", is_death=True, is_of_worker=True),
    PAYLOAD: CauseRow("could not be accepted: its payload is too large or cannot be unpacked",
        "ask its producer; discard or fail", is_conviction=False),
    BLOCKED: CauseRow("was blocked when it arrived",
        "decide about the rule first; it has not run", is_conviction=False),
    FAILURES: CauseRow("was put back more often than max_failures allows",
        "repair the service that it waits for, then release"),
    REJECTED: CauseRow("failed and its task does not acknowledge failures",
        "repair the task, then release", is_conviction=False),
    REQUESTED: CauseRow("was sent to quarantine by its own task or by a person",
        "the reason above says what its task wants", is_conviction=False),
    FAILURE: CauseRow("failed with an exception, as its caller knows",
        "repair the task, then release", is_conviction=False),
    FROZEN: CauseRow("was running when its worker fell silent",
        "look at the machine, then release", is_nobodys_fault=True, is_failure=True),
    SHUTDOWN: CauseRow("was interrupted by a shutdown", is_nobodys_fault=True),
    NOT_REACHED: CauseRow("could not begin: Celery failed before its task"),
    EVICTION: CauseRow("was interrupted when its worker was killed before its shutdown was over",
        is_nobodys_fault=True),
    UNKNOWN: CauseRow("was lost for an unknown reason", "read the worker's log at that time", is_death=True),
    UNKNOWN_TASK: CauseRow("names a task that its worker does not know",
        "deploy workers that know the task, then release; or discard",
        is_conviction=False, is_unprocessable=True),
    UNDECODABLE: CauseRow("could not be decoded, or is of a content type that its worker does not accept",
        "repair the producer or accept_content, then release; or discard",
        is_conviction=False, is_unprocessable=True),
    MALFORMED: CauseRow("asks for a task with headers or arguments that Celery cannot read",
        "repair the producer, then discard", is_conviction=False, is_unprocessable=True),
    NOT_A_TASK: CauseRow("is not a task's message",
        "find its sender, then discard", is_conviction=False, is_unprocessable=True),
    QUEUE_FULL: CauseRow("was the oldest in a full queue, and made room", "release when there is room"),
    HELD: CauseRow("has arguments that a person holds back",
        "lift the hold, which releases it; it has not run", is_conviction=False),
}
# fmt: on
#: Why a message is in quarantine that was about to go to the pool.
KEPT_FROM_POOL: Final = (BLOCKED, HELD)
_KILLED: Final = "find what killed it: most likely the task itself; repair, then release, or fail"
_ENDED: Final = "repair the code or the input, then release; or fail"


def _causes_that(belong: Callable[[CauseRow], bool]) -> tuple[str, ...]:
    return tuple(cause for cause, row in ROWS.items() if belong(row))


#: Deaths of whole workers for which no message on board is to blame.
NOBODYS_FAULT: Final = frozenset(_causes_that(attrgetter("is_nobodys_fault")))
#: Causes by which starts end together with their workers.
OF_WORKERS: Final = _causes_that(attrgetter("is_of_worker"))
#: Causes by which starts end, as far as they can be listed; of ``signal:N`` and ``exit:N`` the frequent ones.
DEATHS: Final = ("signal:6", "signal:9", "signal:11", "exit:1", *_causes_that(attrgetter("is_death")))
#: Deaths and interruptions that count as a failure.
FAILS: Final = frozenset(_causes_that(attrgetter("is_failure")))
#: Why a message never reached a task.
UNPROCESSABLE: Final = frozenset(_causes_that(attrgetter("is_unprocessable")))
#: Why a message is in quarantine that was stopped before it began.
NEVER_BEGAN: Final = frozenset({PAYLOAD, BLOCKED, HELD, QUEUE_FULL, *UNPROCESSABLE})
#: Why a message may be in quarantine without having been convicted of anything.
NO_CONVICTIONS: Final = frozenset(_causes_that(lambda row: not row.is_conviction))
#: Causes of which a caller is not told (``tell="conviction"``): no conviction, or Celery has reported it.
NOT_TOLD: Final = NO_CONVICTIONS | {*_causes_that(attrgetter("is_reported"))}

_EXIT_STATUS: Final = re.compile(r"exitcode (-?\d+)|signal (\d+)")


def from_exit_code(code: int) -> str:
    """Return the cause for a process's exit code as ``waitpid`` gives it (negative: a signal)."""
    return f"signal:{-code}" if code < 0 else f"exit:{code}"


def from_worker_lost(text: str) -> str:
    """Return the cause that billiard's WorkerLostError gives, as text only."""
    match = _EXIT_STATUS.search(text)
    if match is None:
        return UNKNOWN
    code, signum = match.groups()
    return f"signal:{signum}" if signum else from_exit_code(int(code))


def describe(cause: str) -> str:
    """Return a sentence fragment that a person understands, e.g. *killed its process by SIGSEGV*."""
    if cause.startswith("signal:"):
        return f"killed its process by {signal_name(cause[7:])}"
    if cause.startswith("exit:"):
        return f"ended its process with exit code {cause[5:]}"
    row = ROWS.get(cause or UNKNOWN)
    return row.sentence if row else cause


def usual_decision(cause: str) -> str:
    """Return the usual decision about a message that is in quarantine for this; empty where there is none."""
    if cause.startswith(("signal:", "exit:")):
        return _KILLED if cause == "signal:9" else _ENDED
    return ROWS[cause].decision if cause in ROWS else ""


def short(cause: str) -> str:
    """Return a cause as a table shows it, e.g. ``SIGSEGV`` for ``signal:11``; the others as they are."""
    return signal_name(cause[7:]) if cause.startswith("signal:") else cause


def from_short(text: str) -> str:
    """Return the cause that a person typed, e.g. ``signal:11`` for ``sigsegv``; the others as they are."""
    found = signal.Signals.__members__.get(text.upper())
    return text if found is None else f"signal:{found.value}"


def is_known(cause: str) -> bool:
    """Whether this is one of the words of docs/journal.md, numbers included: some hundreds at most."""
    kind, _, number = cause.partition(":")
    return cause in ROWS or (kind in ("signal", "exit") and number.lstrip("-").isdecimal())


def signal_name(number: str) -> str:
    """Return the name of a signal, e.g. *SIGSEGV*."""
    try:
        return signal.Signals(int(number)).name
    except ValueError:
        return f"signal {number}"


# --- evidence -------------------------------------------------------------------------------------

#: Signals that ask a process to end. A task has no reason to send them to itself, so they come from outside;
#: what does so all the same is put back ``max_failures`` times at most.
REQUESTS_TO_END: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})

#: Signals of native crashes, of which a Python stack may be left.
NATIVE: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})


#: Whatever has one of these in its path is no code of the user's.
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python3", "/celery_poison/", "(<")


def is_users(frame: str) -> bool:
    """Whether a line of a stack is the user's own code."""
    return not any(place in frame for place in _LIBRARIES)


#: File and line at the end of ``function (file:line)``, without directories.
_PLACE: Final = re.compile(r"([^/()]+:\d+)\)$")


def place_in(frame: str) -> str:
    """Return ``file:line`` of a ``function (path:line)``, without folders; empty where it has none."""
    match = _PLACE.search(frame)
    return match[1] if match else ""


#: Share of the limit from which memory counts as used up.
NEAR: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Every field is empty where it is not known or does not apply.

    Attributes:
        signal: by which its process was ended.
        exit: the exit status of its process.
        oom: whether the kernel's out-of-memory killer, or the guard of its cell, ended it. Told of SIGKILL.
        rss_kb: peak resident memory of its process, in KiB.
        limit_kb: memory that its control group, or else the machine, may use, in KiB.
        time_limit_s: hard limit that it ran past, in seconds.
        noticed: how the death of its worker was noticed: ``gone``, ``silent`` or ``frozen``.
        recursion: the stack was used up by functions that called each other without end.
        stack: where its Python code was at a native crash, or raised, the innermost call first; no arguments.
            Of a worker that was frozen, or beyond help: where its event loop stood.
        exception: class of what it raised, where a failure is kept (``keep_failures``); never its message.

    Of the death of a whole worker, which left no process to report it, by its last heartbeat:

    Attributes:
        heard_ms: how long before its end that was, at most: before its connections were seen to be gone, or
            else the verdict.
        after_ms: the last sign of life of its worker, and
        by_ms: when it was first seen to be gone, or else the verdict: it died between both. In milliseconds
            since 1970, by Redis' clock.
        used_kb: memory in use then by all that shares the limit, in KiB.
        limit_of: whose ``limit_kb`` is: ``group`` (the control group's) or ``machine``; also of one process
            ``trial`` (``poison_trial_memory_limit``).
        near_limit: at least nine tenths of the limit were used.
        asked: name of the signal by which it had been asked to leave, or ``alive``; empty also when that came
            otherwise.
        asked_ms: how long before its end it was asked, at most; None: it was not, or had no time to say so.

    Of memory that grew in the last seconds before a death (NEW-19):

    Attributes:
        grown_kb: what this task's process, or its thread, took since it began, in KiB; 0: little.
        oom_likely: the memory that was left was about to be used up.

    Attributes:
        additions: what extensions know, each by its class: ``FIELDS`` of a room's module ``evidence``. In
            JSON their fields stand beside the others.
    """

    signal: int | None = None
    exit: int | None = None
    oom: bool | None = None
    rss_kb: int | None = None
    limit_kb: int | None = None
    time_limit_s: float | None = None
    noticed: str = ""
    recursion: bool = False
    stack: tuple[str, ...] = ()
    exception: str = ""
    heard_ms: int | None = None
    after_ms: int | None = None
    by_ms: int | None = None
    used_kb: int | None = None
    limit_of: str = ""
    near_limit: bool | None = None
    asked: str = ""
    asked_ms: int | None = None
    grown_kb: int | None = None
    oom_likely: bool | None = None
    additions: Mapping[type, Any] = field(default_factory=dict, hash=False)

    def of(self, kind: type[A]) -> A:
        """Return the addition of an extension; its fields are empty where it knows nothing."""
        added: A | None = self.additions.get(kind)
        return kind() if added is None else added

    def having(self, added: object) -> Self:
        """Return a copy with the addition of an extension."""
        return replace(self, additions={**self.additions, type(added): added})

    @property
    def cause(self) -> str:
        """A cause, by what became of the process."""
        if self.oom:
            return OOM
        if self.signal is not None:
            return f"signal:{self.signal}"
        return f"exit:{self.exit}" if self.exit is not None else UNKNOWN

    @property
    def source(self) -> str:
        """Where the user's own code was, as ``function (file:line)``: innermost, outside of libraries.

        What runs out of memory leaves no stack: there an extension may know the ``place``.
        """
        if self.stack or not self.oom:
            return next(filter(is_users, self.stack), self.stack[0] if self.stack else "")
        places = (str(getattr(each, "place", "")) for each in self.additions.values())
        return next(filter(None, places), "")

    @property
    def is_from_outside(self) -> bool:
        """Whether the process was asked to end: the task that ran in it is not to blame."""
        return self.signal in REQUESTS_TO_END

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are known, as JSON has them."""
        values = (
            (name, value) for part in (self, *self.additions.values()) for name, value in _values_of(part)
        )
        known = {
            name: [*value] if isinstance(value, tuple) else value
            for name, value in values
            if value not in (None, "", ())
        }
        return {name: value for name, value in known.items() if name != "recursion" or value}

    def encode(self) -> str:
        """The same as compact JSON; the empty string for nothing."""
        known = self.as_dict()
        return json.dumps(known, separators=(",", ":")) if known else ""

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read evidence; what is not to be understood is left out."""
        try:
            raw = json.loads(text or "{}")
        except (ValueError, RecursionError):
            raw = None
        if not isinstance(raw, dict):
            return cls()
        kinds = (room.FIELDS for room in rooms_with("evidence"))
        additions = {kind: kind(**known) for kind in kinds if (known := _read(kind, raw))}
        return cls(**_read(cls, raw), additions=additions)


#: Numbers of a list that are read at most: the last ones.
MOST_NUMBERS: Final = 24
#: No number of an evidence comes near: a moment in ms has thirteen digits.
_MOST: Final = 10**15


def _values_of(part: Any) -> Iterator[tuple[str, Any]]:
    return ((each.name, getattr(part, each.name)) for each in fields(part) if each.name != "additions")


def _read(kind: type[Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a class's fields that are to be understood."""
    read: dict[str, Any] = {}
    for each in fields(kind):
        value, of = raw.get(each.name), str(each.type)
        if of == "tuple[str, ...]" and isinstance(value, list):
            read[each.name] = tuple(map(str, value))
        elif of == "tuple[int, ...]" and isinstance(value, list):
            numbers = (number for number in value[-MOST_NUMBERS:] if _fits("int", number))
            read[each.name] = tuple(number for number in numbers if number >= 0)
        elif _fits(of, value):
            read[each.name] = value
    return read


def _fits(kind: str, value: object) -> bool:
    """Whether a value that came from outside is of the type of its field, finite, and not too large."""
    match kind.removesuffix(" | None"):
        case "int":
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST
        case "float":  # not a number is less than nothing
            return isinstance(value, (int, float)) and abs(value) < _MOST
        case "bool":
            return isinstance(value, bool)
        case "str":
            return isinstance(value, str)
    return False


NO_EVIDENCE: Final = Evidence()
