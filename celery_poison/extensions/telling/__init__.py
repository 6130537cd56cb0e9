"""The caller hears at the conviction (NEW-17): ``tell="conviction"``. The message stays in quarantine.

First it is written down that a caller is owed its failure, then the message is stored, then a task is sent
that tells, then it is crossed off. After a death in between the active monitor does it. That task, in a
worker of the message's queue, does what ``fail`` does: ``teller``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from celery import Celery
from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.basics.parts import Round
from celery_poison.broker.publish import Publisher
from celery_poison.errors import LedgerUnavailable
from celery_poison.extension import Around, Extension
from celery_poison.extensions.telling.owed_notices import cross_off, owe, owed
from celery_poison.ledger import Ledger
from celery_poison.model import Start
from celery_poison.policy import Policy

logger = get_logger("celery_poison")

#: Seconds between two looks of the active monitor, and after which it sends what is still owed.
PAUSE, OVERDUE = 2.0, 10.0
#: How the names of tasks of the plugin's own begin.
OURS: Final = "celery_poison."


class Telling(Extension):
    """Has callers told of convictions, where their task wants that."""

    def quarantining(
        self, ledger: Ledger, message: Any, mid: str, start: Start, cause: str, reason: str
    ) -> Around:
        if cause in causes.NOT_TOLD or start.task.startswith(OURS):
            return nullcontext()
        policy = Policy.of(self.host.app.tasks.get(start.task), self.host.settings)
        return self._owing(ledger, mid) if policy.tell == "conviction" else nullcontext()

    def serving(self, app: Celery) -> None:
        from celery_poison.extensions.telling.teller import register

        register(app)

    def rounds(self, ledger: Ledger, announce: Callable[..., object]) -> Iterable[Round]:
        return [Round("poison-telling", PAUSE, lambda fence: self.send_late(ledger))]

    @contextmanager
    def _owing(self, ledger: Ledger, mid: str) -> Iterator[None]:
        owe(ledger, mid)
        try:
            yield
        except LedgerUnavailable:
            raise  # it may be in quarantine: the monitor looks
        except BaseException:
            cross_off(ledger, mid)
            raise
        self._send(ledger, mid)

    def send_late(self, ledger: Ledger) -> int:
        """Send what has been owed for too long; return how many.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        now = time.time()
        late = [mid for mid, since in owed(ledger).items() if now - since > OVERDUE]
        return sum(self._send(ledger, mid) for mid in late)

    def _send(self, ledger: Ledger, mid: str) -> bool:
        from celery_poison.desk.failing import ResultRefused
        from celery_poison.extensions.telling.teller import call_for

        queries = ledger.read
        record, kept = queries.record(mid), queries.message(mid)
        if record is not None and kept and not record.told:
            try:
                with Publisher(self.host.app) as publisher:
                    call_for(self.host.app, publisher, record, kept)
            except ResultRefused as error:
                logger.error("celery_poison: the caller of %s waits on: %s", record.id, error)
                return False
        cross_off(ledger, mid)
        return True


EXTENSION = Telling
