"""Whether what ran here still belongs to this worker, or others have put it back and run it (EMS-8)."""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger

from celery_poison.errors import StaleDelivery
from celery_poison.ledger import Ledger
from celery_poison.records import Start
from celery_poison.worker.running.lease import Lease
from celery_poison.worker.running.recorder import Recorder

logger = get_logger("celery_poison")


class Ownership:
    """Answers for one worker; everything here waits for Redis, in the clerk's thread."""

    def __init__(self, ledger: Ledger, lease: Lease, recorder: Recorder) -> None:
        self._ledger = ledger
        self._lease = lease
        self._recorder = recorder

    def is_mine(self, mid: str, start: Start) -> bool:
        """Whether the message of a start that has ended is still this worker's."""
        if not self._lease.is_doubtful(start.token):
            return True
        try:
            self._ledger.reclaim(mid, start)
        except StaleDelivery:
            return False
        return True

    def ended_too_late(self, request: Any, *, lost: bool = False) -> None:
        """A start ended after its worker was taken for dead.

        Args:
            lost: it is known to have lost its message, which may have ended elsewhere by now.
        """
        start = request.start()
        start = start._replace(worker=self._recorder.worker_of(start.token))
        try:
            self._ledger.survived(request.mid, start.token, request.id, start if lost else None)
        except StaleDelivery as error:
            logger.error("celery_poison: %s counts for nothing: %s", request.humaninfo(), error)
