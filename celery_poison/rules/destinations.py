"""Where what goes to quarantine belongs: the settings ``poison_exception_destination`` and its time.

Everything is stored in the ledger first, which is the system's own quarantine. From there the active monitor
moves on what has another destination (``fleet/departures.py``). Nothing here knows Redis or Celery.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from celery_poison import causes
from celery_poison.basics.text import clean
from celery_poison.model import MessageRecord

#: The quarantine in the ledger; and in a mapping: every cause that is not named.
SYSTEM: Final = "system"
EVERY_CAUSE: Final = "*"

#: What a destination of None leaves in quarantine until a person decides: what was not convicted, and what
#: kills a whole worker each time it is received.
STAYS: Final = causes.NO_CONVICTIONS | {causes.RECEIVE}

#: The actor in the journal, where no person decided.
ACTOR: Final = "celery_poison"

#: What the header ``poison_verdict`` tells; names and units as in the JSON message object.
TOLD: Final = (
    *("id", "mid", "task", "queue", "cause", "reason", "deliveries", "crashes", "strikes", "failures"),
    *("fingerprint", "quarantined_at"),
)

#: "system", a queue, None (it stays), or a mapping of causes to these.
Destination = str | None | Mapping[str, str | None]


class Route(NamedTuple):
    """Where a message goes from quarantine by itself; an empty one waits there for a person.

    Attributes:
        queue: the named destination.
        retry_ms: milliseconds after which it goes back to its own queue.
    """

    queue: str = ""
    retry_ms: int | None = None


#: It waits for a person.
SYSTEM_ROUTE: Final = Route()


def route(
    destination: Destination, cause: str, *, blocked_retry_timeout: float, came_from: str, was_sent: bool
) -> Route:
    """Decide where a message goes that is quarantined for ``cause`` (WAS-4, WAS-5, NEW-11).

    Args:
        came_from: the queue that it was consumed from.
        was_sent: it has been at a named destination before: it goes there once.
    """
    if cause == causes.HELD:  # a worker of that queue would run it while the hold stands (NEW-27)
        return SYSTEM_ROUTE
    by_cause = _by_cause(destination)
    chosen = by_cause.get(cause, by_cause.get(EVERY_CAUSE, SYSTEM))
    if chosen is None:
        stays = cause in STAYS or blocked_retry_timeout < 0
        return SYSTEM_ROUTE if stays else Route(retry_ms=round(blocked_retry_timeout * 1000))
    if chosen in (SYSTEM, came_from) or was_sent:
        return SYSTEM_ROUTE
    return Route(queue=chosen)


def _by_cause(destination: Destination) -> Mapping[str, str | None]:
    return destination if isinstance(destination, Mapping) else {EVERY_CAUSE: destination}


def named_in(destination: Destination) -> set[str]:
    """Return the queues that a destination names, for whatever cause."""
    return {queue for queue in _by_cause(destination).values() if queue not in (None, SYSTEM)}


def verdict_header(record: MessageRecord) -> dict[str, Any]:
    """Return the value of the header ``poison_verdict`` of a copy for a named destination."""
    return {name: getattr(record, name) for name in TOLD}


def where_sent(queue: str) -> str:
    """Return a sentence about a message that is at its named destination."""
    where = f"Its body is in the queue {clean(queue)} alone"
    return f"{where}: a worker that consumes that queue runs it, on probation."


def is_cause(key: object) -> bool:
    """Whether a mapping may have this key."""
    return key == EVERY_CAUSE or (isinstance(key, str) and causes.is_known(key))
