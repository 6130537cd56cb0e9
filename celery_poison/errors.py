"""Every error a user of celery_poison can meet; each names the fault and its cure."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` takes longer to import than a probe may take
if TYPE_CHECKING:
    from typing import Any


class PoisonError(Exception):
    """Base class of all errors raised by celery_poison."""


class ConfigurationError(PoisonError):
    """A setting is unknown, impossible or contradicts another; the worker does not start."""


class NoLedger(ConfigurationError):
    """Nothing says where the ledger is: no setting, and neither broker nor result backend is Redis."""


class LedgerUnavailable(PoisonError):
    """The ledger's Redis could not be reached, is too old, or refused a write."""


class SchemaMismatch(ConfigurationError):
    """The ledger under this namespace belongs to another schema, app or broker."""


class IllegalTransition(PoisonError):
    """The message is not in a state from which the wanted transition is legal (SAP-1)."""


class MessageNotFound(PoisonError):
    """No message with this id or mid is known to the ledger."""


class _ByName:
    """Is pickled as the name of a class: who cannot import it gets a stand-in, as of JSON."""

    def __init__(self, kind: type[Exception]) -> None:
        self._kind = kind

    def __call__(self, *args: Any) -> Exception:
        return self._kind(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        names = self._kind.__name__, self._kind.__module__
        from importlib import import_module

        find = import_module("kombu.utils.imports").symbol_by_name
        return find, (":".join(reversed(names)), None, None, None, ".", _StandIn(*names))


class _StandIn:
    """Is pickled as what Celery makes of an exception's class that it does not know."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __reduce__(self) -> tuple[Any, ...]:
        # By its name, which is what a pickle holds: the ledger, which imports this, knows nothing of Celery.
        from importlib import import_module

        return import_module("celery.utils.serialization").create_exception_cls, self._names


class GivenUp(PoisonError):
    """A person gave the message up: ``AsyncResult.get()`` raises this (SAP-7).

    A client that does not have celery_poison gets Celery's stand-in of the same name and text.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _ByName(type(self)), self.args


class Quarantined(GivenUp):
    """The message was convicted and waits in quarantine, with ``tell="conviction"`` (NEW-17).

    A later release runs it, and its result replaces this.

    Args:
        sentence: why it is there.
        mid: its name in quarantine.
        cause: what it died of.
        place: where the user's own code was, as ``function (file:line)``; empty where that is not known.
    """

    def __init__(self, sentence: str = "", mid: str = "", cause: str = "", place: str = "") -> None:
        super().__init__(sentence, mid, cause, place)
        self.mid, self.cause, self.place = mid, cause, place

    def __str__(self) -> str:
        return str(self.args[0])


class QuarantineFull(PoisonError):
    """A message that plain Celery drops was not kept: the quarantine is full (NEW-5, MSG-1)."""


class LedgerFull(PoisonError):
    """A message was not parked: what is parked takes as much as it may. It stays with the broker."""


class DecisionPending(PoisonError):
    """Another operator is deciding about this message at this moment."""


class SecondPersonNeeded(PoisonError):
    """Nothing was done: another person has to ask for the same (``poison_second_person``)."""


class PolicyConflict(PoisonError):
    """Another person changed a policy since it was read; nothing was changed (EMS-9)."""


class ProposalRefused(PoisonError):
    """The pipeline's proposal cannot be applied as it was read; nothing was done (NEW-7)."""


class StaleDelivery(PoisonError):
    """The start that reports here no longer owns its message (EMS-8)."""


class Fenced(PoisonError):
    """The process lost the monitor's lock or its lease and must not act any more."""


class QueueFull(PoisonError):
    """A queue has reached ``poison_max_messages``; nothing was sent (MSG-2).

    Args:
        queue: name of the full queue.
        depth: messages in it, as counted before the refused publish.
        limit: the configured limit.
        wanted: messages that were to be added, of a group or a chord all of them (MSG-6).
    """

    def __init__(self, queue: str, depth: int, limit: int, wanted: int = 1) -> None:
        more = f"; {wanted} more were to be added" if wanted > 1 else ""
        super().__init__(f"queue {queue!r} holds {depth} messages, its limit is {limit}{more}")
        self.queue = queue
        self.depth = depth
        self.limit = limit
        self.wanted = wanted

    def __reduce__(self) -> tuple[type[QueueFull], tuple[str, int, int, int]]:
        return type(self), (self.queue, self.depth, self.limit, self.wanted)


#: What a step on a quarantined message raises where another person was faster, or decides at this moment.
OVERTAKEN = (DecisionPending, IllegalTransition, MessageNotFound, StaleDelivery)
