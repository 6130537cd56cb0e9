"""The rules that are compared: ours, as the plugin's own verdict carries it out, and those that count."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from celery_poison.decide import Action, EndOfStart, Facts, judge
from celery_poison.model import NO_HISTORY, History, Limits


@dataclass
class Past:
    """What a rule may know of one message.

    Attributes:
        history: as the ledger would have it.
        returns: how often it was delivered and came back.
    """

    history: History = field(default=NO_HISTORY)
    returns: int = 0


class Rule(Protocol):
    @property
    def name(self) -> str:
        """What the tables call it."""

    def admit(self, past: Past) -> Action:
        """Return RUN, RUN_ALONE or QUARANTINE for a message that a worker has received."""


def died(past: Past, *, alone: bool) -> None:
    """Enter a death in which the message was running."""
    known = past.history
    past.history = replace(
        known,
        crashes=known.crashes + 1,
        strikes=known.strikes + 1,
        proven=known.proven + alone,
        candidate=True,
        shared_blame=not alone,
        cause="worker_lost",
    )


def doubt(past: Past, end: EndOfStart) -> None:
    """Enter that its worker ended while it was in a cell."""
    known = past.history
    past.history = replace(known, spoilt=known.spoilt + end.spoilt, doubt=known.doubt + end.doubt)


@dataclass(frozen=True)
class Ours:
    name: str = "ours"

    def admit(self, past: Past) -> Action:
        return judge(Facts(past.history), Limits()).action


@dataclass(frozen=True)
class CountTo:
    """Convicts whoever was running in so many deaths; the plugin itself with ``poison_trial="off"``."""

    bound: int

    @property
    def name(self) -> str:
        return f"count to {self.bound}"

    def admit(self, past: Past) -> Action:
        return judge(Facts(past.history), Limits(max_crashes=self.bound, trials=False)).action


@dataclass(frozen=True)
class DeliveryLimit:
    """A RabbitMQ quorum queue's ``x-delivery-limit``: whatever came back more often is dead-lettered."""

    limit: int

    @property
    def name(self) -> str:
        return f"delivery limit {self.limit}"

    def admit(self, past: Past) -> Action:
        return Action.QUARANTINE if past.returns > self.limit else Action.RUN


#: 20 is what RabbitMQ 4 sets where nobody says anything else.
RULES: tuple[Rule, ...] = (
    Ours(),
    CountTo(2),
    CountTo(3),
    CountTo(5),
    DeliveryLimit(2),
    DeliveryLimit(4),
    DeliveryLimit(20),
)
