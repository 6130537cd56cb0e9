"""The one truth: everything celery_poison knows about messages and workers, kept in Redis.

This room knows nothing of Celery. Reading order: ``keys``, ``lua/`` (one file a transition), ``scripts``;
what is written: ``messages``, ``parking``, ``quarantine``, ``fleet``, ``notices``, ``decisions`` (by people);
what is read: ``views`` (made of ``messages_read``, ``fleet_read``, ``groups``), ``policies``; ``writer`` (the
unanswered writes of the hot path), ``durability`` (those that are waited for); ``journal``.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import redis

from celery_poison.ledger.connection import disconnect
from celery_poison.ledger.decisions import DecisionTransitions, PolicyTransitions
from celery_poison.ledger.fleet import FleetTransitions
from celery_poison.ledger.keys import Keys
from celery_poison.ledger.memory import LedgerMemory
from celery_poison.ledger.messages import MessageTransitions
from celery_poison.ledger.notices import NoticeTransitions
from celery_poison.ledger.parking import ParkingTransitions
from celery_poison.ledger.quarantine import QuarantineTransitions
from celery_poison.ledger.scripts import Scripts
from celery_poison.ledger.views import Views

__all__ = ["Keys", "Ledger"]

T = TypeVar("T")


class Ledger:
    """Transitions of messages and workers, each atomic, each journalled in the same step.

    Args: see :class:`celery_poison.ledger.scripts.Scripts`.

    Attributes:
        client, keys: the Redis, and the keys of the namespace there.
        scripts: runs the scripts of every part, and those of extensions.
        read: everything that is read, which changes nothing.
        messages: what workers do with messages, and monitors for workers that died.
        parking: messages that wait for the end of an earlier start, or for a trial.
        quarantine: the ways into quarantine.
        fleet: workers and monitors.
        memory: how full that Redis is.
        notices: for workers that send events.
        decisions: what a person decides about a message.
        rules: what a person decides for the whole fleet: policies and blocks.

    Every method of a part raises ``LedgerUnavailable`` when Redis is away or refuses the write.
    """

    def __init__(self, client: redis.Redis, keys: Keys, journal_maxlen: int = 1_000_000) -> None:
        self.client, self.keys = client, keys
        self.scripts = scripts = Scripts(client, keys, journal_maxlen)
        self.read = Views(self)
        self.messages = MessageTransitions(scripts)
        self.parking = ParkingTransitions(scripts)
        self.quarantine = QuarantineTransitions(scripts)
        self.fleet = FleetTransitions(scripts)
        self.memory = LedgerMemory(client, keys)
        self.notices = NoticeTransitions(scripts)
        self.decisions = DecisionTransitions(scripts)
        self.rules = PolicyTransitions(scripts)
        self._companions: dict[object, Any] = {}

    def companion(self, owner: object, make: Callable[[], T]) -> T:
        """Return the part of an extension for this ledger, made at the first call; it goes with the ledger.

        A dictionary with weak keys would keep both for good, since what is made holds its ledger.

        Args:
            owner: the extension.
        """
        if owner not in self._companions:
            self._companions[owner] = make()
        companion: T = self._companions[owner]
        return companion

    def disconnect(self) -> None:
        """Close every connection; those who still wait for an answer meet a ``LedgerUnavailable``."""
        disconnect(self.client)
