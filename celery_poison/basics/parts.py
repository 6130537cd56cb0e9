"""What extensions hand to the core: work of the monitor, a panel, a finding, a worker's service, a hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

#: Short work of a worker's heartbeat thread, which may not wait. It takes what sends commands unanswered,
#: and returns the seconds until it is called again.
Service = Callable[[Callable[[bytes], bool]], float]


class Round(NamedTuple):
    """Work of the active monitor, now and again, in a thread of its own.

    Attributes:
        pause: seconds between two beginnings, at least.
        work: takes the fence of the monitor. ``LedgerUnavailable`` and ``Fenced`` mean: not now.
        key: of Redis; while it is not there, there is nothing to do. Empty: nobody can say.
    """

    name: str
    pause: float
    work: Callable[[int], object]
    key: str = ""


class Postponed(NamedTuple):
    """The decision about a message whose task its worker does not know.

    Attributes:
        pause: seconds after which it goes back to its queue; 0: it goes to quarantine.
        note: why, for the journal; or who knows its task, for the reason in quarantine.
    """

    pause: float
    note: str


class Panel(NamedTuple):
    """An extension's panel in an overview (``status``, Flower).

    Attributes:
        name: of its field in ``status --json``, and of its line.
        value: for Flower; None: there is nothing.
        as_json: that field.
        decisions: what waits for a person, in sentences.
        typed: what that person types.
        warnings: what is doubtful, in sentences.
    """

    name: str
    value: Any = None
    as_json: Any = None
    line: str = ""
    decisions: Sequence[str] = ()
    typed: Sequence[str] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        cure: what to do about a weakness.
        broken: promises are broken; else it works, with a weakness if there is a cure.
    """

    check: str
    said: str
    cure: str = ""
    broken: bool = False

    @property
    def level(self) -> str:
        return "FAIL" if self.broken else "warn" if self.cure else "ok"

    def as_dict(self) -> dict[str, Any]:
        return {"check": self.check, "level": self.level, "said": self.said, "cure": self.cure}


class Helper(Protocol):
    """A part of an extension that works beside a worker, in threads of its own."""

    def start(self) -> None:
        """Begin, once the pool has forked. Called again after each new connection to the broker."""

    def stop(self) -> None:
        """Begin nothing more; waits for nothing."""

    def finish(self, patience: float) -> None:
        """Begin nothing more, and wait at most so many seconds for what goes on at this moment."""

    def join(self, patience: float) -> None:
        """Wait at most so many seconds until its threads have ended."""


class Tie(Protocol):
    """Messages that leave in one step with the success of one run, in the process that runs it."""

    def __bool__(self) -> bool:
        """Whether there is anything."""

    def keep(self) -> None:
        """Keep it, now that the body has returned; what is raised fails the task."""

    def add_to_success(self, script: str, own_keys: Mapping[str, str], words: Mapping[str, Any]) -> None:
        """Run a script in the same step, with keys and arguments by their names."""

    def at_the_end(self, *, succeeded: bool) -> bytes:
        """Return the commands that belong to the end of the run."""


class Turn(Enum):
    """The answer of a hold about one message."""

    BEGIN = "begin"
    """As ever."""
    ALONE = "alone"
    """In a cell."""
    SOON = "soon"
    """It asks again in a moment."""
    PARK = "park"
    """It waits in the ledger."""


class Asked(NamedTuple):
    """A message about which a hold is asked.

    Attributes:
        token: of the start that it would have.
        is_suspect: it runs alone anyway.
        room: how many more cells its worker has at this moment; None: it can make none.
        slots: of its worker's pool.
    """

    task: str
    mid: str
    token: str
    is_suspect: bool
    room: int | None
    slots: int


class Caught(NamedTuple):
    """Why one message does not begin, whatever its history: a person holds back what it is about.

    Attributes:
        cause, reason: with which it goes to quarantine.
        awaits: key for which it is parked instead (``Extension.still_awaited``); empty: it is not.
    """

    cause: str
    reason: str
    awaits: str = ""


class Hold:
    """A reason to keep messages of one worker from beginning.

    The event loop calls its methods, unless they say otherwise.

    Attributes:
        is_at_rest: it stops nothing now, and need not hear of runs.
        version: raised when another answer holds for all messages of a task (``is_at_rest``, :meth:`parks`,
            :meth:`asks`, :meth:`looks_into`); looked at after each :meth:`refresh`.
        follows: key of a hash with a version, whose change is taken over; empty: there is none.
    """

    is_at_rest = False
    version = 0
    follows = ""

    def parks(self, task: str, *, as_of_now: bool = False) -> bool:
        """Whether messages of a task are to be parked.

        Args:
            as_of_now: look at what the ledger says, in a thread that may wait for it.

        Raises:
            LedgerUnavailable: ``as_of_now``, and Redis is away.
        """
        return False

    def asks(self, task: str) -> bool:
        """Whether each message of a task is asked about before it begins (:meth:`turn`).

        Of several holds that ask about a task, the first has the say: a turn may take what another lacks.
        """
        return False

    def expect(self, tasks: Set[str]) -> None:
        """Prepare for :meth:`turn` of messages of these tasks, in the same thread; raise nothing."""

    def turn(self, asked: Asked) -> Turn:
        """Return how a message may begin, or that it waits; in a thread that may wait for the ledger.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        return Turn.BEGIN

    def looks_into(self, task: str) -> bool:
        """Whether it looks at what each message of a task is about (:meth:`catch`)."""
        return False

    def catch(self, message: Any, task: str, *, as_of_now: bool = False) -> Caught | None:
        """Return why a message does not begin; None: it does. Asked again before it goes to the pool.

        Args:
            as_of_now: look at what the ledger says, in a thread that may wait for it.

        Raises:
            LedgerUnavailable: ``as_of_now``, and Redis is away.
        """
        return None

    def let_go(self, message: Any) -> None:
        """A message that was caught begins all the same, since the ledger cannot take it."""

    def stops(self, queue: str, task: str, request: Any) -> bool:
        """Whether a request may not begin, and its message goes back to its queue."""
        return False

    def begins(self, queue: str, request: Any) -> None:
        """A request goes to the pool."""

    def ended(self, queue: str, request: Any, end: Any) -> None:
        """A run has ended (``decide.End``); on the event loop, or in a thread of the pool."""

    def refresh(self, *, is_up: bool) -> None:
        """Take over what has changed; in the background, once in each heartbeat interval.

        Args:
            is_up: the ledger is there.
        """

    def out(self) -> Sequence[str]:
        """Return the queues that this worker would consume, and does not; any thread asks."""
        return ()
