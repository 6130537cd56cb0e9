"""Whether the ledger is there, fit for its work, and ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from celery import Celery
from celery.utils.log import get_logger

from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger import Ledger, connection
from celery_poison.quarantine.owner import identity_of
from celery_poison.settings import Settings
from celery_poison.worker import durable
from celery_poison.worker.announce import Complaints
from celery_poison.worker.durable import Durable
from celery_poison.worker.recorder import Recorder

logger = get_logger("celery_poison")


@dataclass(eq=False, repr=False)
class Health:
    """What one worker knows of its ledger's health.

    Attributes:
        is_up: whether it answered when it was asked last; the heartbeat asks.
    """

    app: Celery
    settings: Settings
    recorder: Recorder
    complain: Complaints
    _enrolled = False
    is_up = True

    def check(
        self, ledger: Ledger, durable_starts: Durable | None, meet_redis: Callable[[Ledger], object]
    ) -> None:
        """Examine the ledger before the worker begins; what is merely doubtful is logged.

        Args:
            meet_redis: is called when the ledger is known to be fit, and ours.

        Raises:
            ConfigurationError: it is unfit, or another app's.
            LedgerUnavailable: only with ``poison_fail_open=False``.
        """
        try:
            for warning in connection.check_server(ledger.client):
                logger.warning("celery_poison: %s", warning)
            if durable_starts is not None:
                durable_starts.decide()
            self.ensure_enrolled(ledger)
            meet_redis(ledger)
        except LedgerUnavailable as error:
            if not self.settings.fail_open:
                raise
            self.is_up = False
            self.complain(error)
            if durable_starts is not None:
                logger.warning("celery_poison: poison_durability='sync': %s", durable.LATER)

    def ensure_enrolled(self, ledger: Ledger) -> None:
        """Check once that the ledger is ours, by the caller's own connection.

        Raises:
            SchemaMismatch, LedgerUnavailable: see :func:`celery_poison.ledger.connection.enroll`.
        """
        if not self._enrolled:
            self.recorder.secret = connection.enroll(ledger.client, ledger.keys, **identity_of(self.app))
            self._enrolled = True

    def is_another_redis(self) -> None:
        """Its Redis was restarted or replaced: whose it is must be asked again."""
        self._enrolled = False
