"""Carries one decision out on one message after the other; a refusal of one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from celery_poison.errors import IllegalTransition, LedgerUnavailable, PoisonError
from celery_poison.ledger import Ledger
from celery_poison.model import MessageRecord
from celery_poison.quarantine.announce import tell_flower
from celery_poison.quarantine.lookup import Lookup
from celery_poison.quarantine.outcome import Outcome
from celery_poison.states import State


@dataclass(frozen=True, slots=True)
class Case:
    """One message that is reserved for one person's decision.

    Attributes:
        number: of the decision; a released copy bears it.
    """

    record: MessageRecord
    number: int
    actor: str
    note: str


@dataclass(frozen=True, slots=True)
class Acting:
    """One decision of one person: which, whose, why, and how it is done."""

    ledger: Ledger
    lookup: Lookup
    verb: str
    actor: str
    note: str
    act: Callable[[Case], None]

    def on(self, id: str) -> Outcome:
        """Find the message and act on it.

        Raises:
            LedgerUnavailable: Redis is away or refuses; every other trouble is an outcome.
        """
        refused = partial(Outcome, mid="", id=id, task="", done=False)
        try:
            record = self.lookup.find(id)
            refused = partial(Outcome, mid=record.mid, id=record.id, task=record.task, done=False)
            self._decide(record)
        except LedgerUnavailable:
            raise
        except PoisonError as error:
            return refused(error=str(error))
        except Exception as error:
            return refused(error=f"{type(error).__name__}: {error}")
        tell_flower(self.ledger, self.verb, record)
        return Outcome(mid=record.mid, id=record.id, task=record.task, done=True)

    def _decide(self, record: MessageRecord) -> None:
        """Reserve the message, then act; a failed attempt leaves it open to everybody."""
        _refuse_unless_kept(record)
        number = self.ledger.decide(record.mid, self.verb, self.actor, self.note)
        try:
            self.act(Case(record, number, self.actor, self.note))
        except BaseException:
            self.ledger.undecide(record.mid, number)
            raise


def _refuse_unless_kept(record: MessageRecord) -> None:
    """Say what happened instead; the ledger checks again, atomically, when it reserves."""
    if record.state in (State.TBDL, State.DLNG):
        how = ": it was released" if record.probation else ""
        raise IllegalTransition(f"the message is in state {record.state}, not in quarantine{how}")
    if record.state == State.FAIL:
        raise IllegalTransition(f"the message was {record.resolution} by {record.actor or 'somebody'}")
