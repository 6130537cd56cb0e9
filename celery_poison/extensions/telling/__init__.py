"""The caller hears at the conviction (NEW-17): ``tell="conviction"``. The message stays in quarantine.

A caller is owed its failure before the message is stored (``ledger/owed.py``); then a task is sent that, in a
worker of the message's queue, does what ``fail`` does: ``teller``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Final

from celery import Celery
from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.basics.parts import Round
from celery_poison.broker.publish import Publisher
from celery_poison.extension import Around, Extension
from celery_poison.extensions.telling.settings import TellingSettings
from celery_poison.ledger import Ledger
from celery_poison.ledger.owed import PAUSE, Owed
from celery_poison.model import Start
from celery_poison.policy import Policy

logger = get_logger("celery_poison")

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
        wants = policy.section(TellingSettings).tell == "conviction"
        return self._debts(ledger).owing(mid, {}) if wants else nullcontext()

    def serving(self, app: Celery) -> None:
        from celery_poison.extensions.telling.teller import register

        register(app)

    def rounds(self, ledger: Ledger, announce: Callable[..., object]) -> Iterable[Round]:
        work = lambda fence: self._debts(ledger).pay_late()  # noqa: E731
        return [Round("poison-telling", PAUSE, work, ledger.keys.of("telling"))]

    def _debts(self, ledger: Ledger) -> Owed:
        return Owed(ledger, ledger.keys.of("telling"), lambda mid, owed: self._send(ledger, mid))

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
        return True


#: Keys of its own in the ledger -> what names one of several, as docs/keys.md has it.
KEYS = {"telling": ""}
EXTENSION = Telling
