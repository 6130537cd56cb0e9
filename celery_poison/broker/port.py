"""The questions that the rest of the package asks about a broker; each kind answers them in its folder.

A class attribute says what a broker can do; a method does it. The answers here are those of a broker that
can do nothing of it: a kind overrides what it can do better. ``kinds.py`` lists the kinds, and
``tests/broker/conformance.py`` holds all of them to the same promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from celery_poison.basics.parts import Finding
from celery_poison.errors import PoisonError
from celery_poison.model import StoredMessage

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

#: Says of a boot id whether its worker lives; False also if it is unknown, None if that cannot be asked now.
OwnerIsAlive = Callable[[str], bool | None]


class NotPublished(PoisonError):
    """The broker did not take a message: it is away or refuses."""


class Refused(NotPublished):
    """The broker is there, and does not take a message into this queue; into others it may."""


class NoSuchQueue(Refused):
    """The broker knows no queue of that name."""


class NoAnswer(NotPublished):
    """The broker did not answer in time. It may have the message all the same."""

    @classmethod
    def within(cls, seconds: float) -> Self:
        return cls(f"the broker did not answer within {seconds:.0f} seconds")


class Unroutable(PoisonError):
    """No queue is bound to an exchange for a routing key."""


class Parcel(NamedTuple):
    """A message that is to be published, the queue, and the headers in place of its own."""

    stored: StoredMessage
    queue: str
    headers: Mapping[str, Any]


class Push(NamedTuple):
    """One copy of a message on its way into its queue on Redis: a push of ``payload`` to ``key``."""

    key: str
    payload: str


@dataclass(frozen=True, slots=True)
class PutBack:
    """Messages that were put back, where the broker leaves that to us; by earlier calls and by others too.

    Attributes:
        count: the number of messages.
        mids: which; None if the broker did it, and that is unknown.
        queues: the number of messages by queue.
    """

    count: int = 0
    mids: frozenset[str] | None = None
    queues: Mapping[str, int] = field(default_factory=dict)


class WaitingMessage(NamedTuple):
    """One message that waits in a queue, and that is read without being received for good.

    Attributes:
        message: as a consumer would get it.
        remove: takes it out of its queue; returns whether it was still there.
        push: how it lies in its queue, where one step of the ledger's may take it out; None: it may not.
    """

    message: Any
    remove: Callable[[], bool]
    push: Push | None = None


class HeldMessage(NamedTuple):
    """One message that was received, and not acknowledged.

    Attributes:
        owner: boot id of the worker that received it; None: not known.
        age: seconds since it was received, or its visibility timeout was renewed.
        visibility: the broker's visibility timeout, in seconds.
        read: returns its task id and its queue, as far as they can be read; None: it is acknowledged by now.
    """

    tag: str
    owner: str | None
    age: float
    visibility: float
    read: Callable[[], tuple[str, str] | None]


class Heard(NamedTuple):
    """The newest sign of life of a broker on one channel.

    Attributes:
        at: when it was last answered, or received a message, by the monotonic clock; 0 before the first.
        is_full: it receives no more before something is acknowledged.
    """

    at: float
    is_full: bool


class ReceivingProcess(NamedTuple):
    """The questions of a guarded transport to the process that receives by it.

    Attributes:
        boot_id: is asked by every channel that opens.
        owner_is_alive: is asked about the boot ids of other workers, in the event loop's thread.
        books: what this process holds of those brokers that do not know it themselves.
    """

    boot_id: Callable[[], str]
    owner_is_alive: OwnerIsAlive
    books: Any


class Broker:
    """One kind of broker. It holds nothing: each method is given a connection or a channel of kombu's.

    Attributes:
        title: its name for people.
        forgets: it may lose its last moments, and deliver a message again without saying so.
        flags_redelivery: it says of each delivery whether it came before; else a first one may be a copy.
        counts: what it says of the messages that wait in a queue is exact.
        ends_with_process: it is in the memory of one process, and everything in it ends with that.
        lacks: what it cannot do, as the end of a sentence; empty: nothing is missing.
    """

    title = ""
    forgets = False
    flags_redelivery = False
    counts = False
    ends_with_process = False
    lacks = ""

    # --- who it is ------------------------------------------------------------------------------

    def name_of_server(self, connection: Any) -> str:
        """Return the server's own name, by whatever address it was reached; empty: it has none."""
        return ""

    def is_database_of(self, channel: Any, ledger: Redis) -> bool:
        """Whether the queues of a channel are in the ledger's Redis database: one step can move a message."""
        return False

    def is_at(self, channel: Any, address: tuple[str, int]) -> bool:
        """Whether a channel is connected to a host and port, as far as that is known."""
        return False

    def examine(self, app: Celery, connection: Any) -> Iterator[Finding]:
        """Yield the findings of ``doctor`` about a broker that answers."""
        raise NotImplementedError

    def may_write(self, app: Celery, connection: Any, queues: Mapping[str, str]) -> Iterator[Finding]:
        """Yield for each queue whether this user may write to it; nothing where that cannot be known.

        Args:
            queues: by their names, each with the words that begin its sentence.
        """
        return iter(())

    def filled_by_delays(self, app: Celery, connection: Any) -> list[str]:
        """Return the queues whose delayed messages fill a worker: what is behind them waits as long."""
        return []

    def has_fixed_prefetch(self, app: Celery, connection: Any) -> bool:
        """Whether what a worker prefetches cannot grow: what waits in it takes the place of others."""
        return False

    # --- receiving ------------------------------------------------------------------------------

    def guard(self, transport: Any, process: ReceivingProcess) -> Any:
        """Return a transport class that owns what it receives; the same one where there is none.

        What came before has ``redelivered`` in its ``delivery_info``, whatever the broker calls it.
        """
        return transport

    def last_heard(self, channel: Any) -> Heard | None:
        """Return when a channel of ours heard of its broker; None for one of kombu's own. From any thread."""
        at = getattr(channel, "heard_at", None)
        return None if at is None else Heard(at, channel.is_full)

    def finish_poll(self, channel: Any, patience: float) -> None:
        """Receive what was asked for already, if it comes within so many seconds; nothing where none asks."""

    # --- putting back ---------------------------------------------------------------------------

    def owners(self, connection: Any) -> set[str]:
        """Return the boot ids under which messages lie unacknowledged; none where the broker returns them."""
        return set()

    def put_back(self, connection: Any, boot_id: str, queues: Iterable[str]) -> PutBack:
        """Put back every message that the worker process ``boot_id`` received (EMS-6)."""
        return PutBack()

    def unacknowledged(self, connection: Any, age: float, most: int) -> Iterator[HeldMessage] | None:
        """Return the messages received at least ``age`` seconds ago, the oldest first; None: not known."""
        return None

    # --- queues ---------------------------------------------------------------------------------

    def depth(self, connection: Any, queue: str) -> int:
        """Return how many messages wait in a queue; 0 where there is none."""
        raise NotImplementedError

    def oldest(self, connection: Any, queue: str, most: int) -> Iterator[WaitingMessage]:
        """Yield the oldest messages that wait in a queue, to be removed one by one; none: it cannot."""
        return iter(())

    # --- publishing -----------------------------------------------------------------------------

    def publish(self, channel: Any, parcel: Parcel) -> None:
        """Put a message into its queue, past all exchanges."""
        raise NotImplementedError

    def publish_all(self, channel: Any, parcels: Sequence[Parcel]) -> list[Exception | None] | None:
        """Put messages into their queues in one round trip; return why each was refused. None: it cannot."""
        return None

    def pushes(
        self, channel: Any, exchange: str, routing_key: str, body: bytes, parts: Mapping[str, Any]
    ) -> list[Push] | None:
        """Return the pushes of a message, one for each queue that it goes to; None: it must be published.

        Args:
            parts: arguments of ``channel.prepare_message``.

        Raises:
            Unroutable: it goes to no queue.
        """
        return None

    def push(self, channel: Any, pushes: Iterable[Push]) -> None:
        """Do all of that in one step."""
        raise NotImplementedError

    def confirms(self, connection: Any) -> bool:
        """Whether it confirms what is published, and says when it takes nothing."""
        return False

    def flush(self, channel: Any) -> None:
        """Have it take what was published on this channel before another one counts it."""

    def meaning_of(self, error: Exception, queue: str) -> Exception | None:
        """Return the plugin's exception for an error of this broker at publishing; None: it has none."""
        return None
