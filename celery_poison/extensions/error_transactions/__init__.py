"""Error transactions (TP1-3): signatures that are started with a report of what became of a message.

``transactions`` starts them, and only workers and acts load it. A report is what
``celery_poison.rules.reports`` makes. For one of a failed attempt, the recorder of its process has left the
message in the ledger (``worker/recorder.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from celery_poison import causes
from celery_poison.basics.parts import Round
from celery_poison.broker.capture import Outgoing
from celery_poison.decide import End, EndedRun
from celery_poison.extension import Around, Extension, Stored
from celery_poison.extensions.error_transactions.settings import ErrorTransactionsSettings
from celery_poison.ledger import Ledger
from celery_poison.ledger.owed import PAUSE
from celery_poison.model import MessageRecord, Start
from celery_poison.rules.reports import Report, ReportKind

if TYPE_CHECKING:
    from celery_poison.extensions.error_transactions.transactions import ErrorTransactions

#: Characters of an error in a report.
REASON_LENGTH = 500

#: The ends of a run that are reported: as what, and the cause where the run names none. A retry goes on
#: elsewhere, and a message that waits for its idempotency key has not begun.
_TOLD: Final = {
    End.RAISED: (ReportKind.ROLLBACK, causes.FAILURE),
    End.REJECTED: (ReportKind.ROLLBACK, causes.REJECTED),
    End.ROLLED_BACK: (ReportKind.ROLLBACK, causes.REJECTED),
    End.QUARANTINED: (ReportKind.ROLLBACK, causes.REQUESTED),
    End.DIED: (ReportKind.ROLLBACK, causes.WORKER_LOST),
    End.TIMED_OUT: (ReportKind.ROLLBACK, causes.TIME_LIMIT),
    End.REVOKED: (ReportKind.ROLLBACK, causes.UNKNOWN),
    End.SPOILT: (ReportKind.ROLLBACK, causes.UNKNOWN),
    End.DISCARDED: (ReportKind.DISCARD, causes.REQUESTED),
}


class ErrorTransactionsExtension(Extension):
    """Starts error transactions about quarantine, discards, failed attempts and failed sends."""

    def on(self, ledger: Ledger) -> ErrorTransactions:
        """Return the error transactions of a ledger."""
        from celery_poison.extensions.error_transactions.transactions import ErrorTransactions

        return ledger.companion(self, lambda: ErrorTransactions(self.host.app, ledger))

    def rounds(self, ledger: Ledger, announce: Callable[..., object]) -> Iterable[Round]:
        return [
            Round("poison-errors", PAUSE, lambda fence: self.on(ledger).pay_late(), ledger.keys.of("owed"))
        ]

    def send_failed(self, report: Report) -> Iterable[Outgoing]:
        from celery_poison.extensions.error_transactions.transactions import for_failed_send

        return for_failed_send(self.host.app, report)

    def quarantining(
        self, ledger: Ledger, message: Any, mid: str, start: Start, cause: str, reason: str
    ) -> Around:
        from celery_poison.extensions.error_transactions.transactions import told_of

        reported = told_of(message, mid=mid, start=start, opened=cause != causes.RECEIVE)
        return self.on(ledger).owing(
            Report.about(ReportKind.QUARANTINE, reported, cause, reason, token=start.token)
        )

    def discarding(self, ledger: Ledger, record: MessageRecord, stored: Stored, reason: str) -> Around:
        return self.on(ledger).discarding(record, stored, reason)

    def ended(self, site: Any, request: Any, run: EndedRun, error: BaseException) -> None:
        if run.end not in _TOLD or run.observed:
            return
        kind, cause = _TOLD[run.end]
        if getattr(site.policies[request.type][0].section(ErrorTransactionsSettings), kind.value) is None:
            return
        if run.end is not End.ROLLED_BACK:  # that gives its reason for a cause
            cause = run.cause or cause
        facts = kind, request.message, request.mid, request.start(), cause, str(error)[:REASON_LENGTH]
        site.background.do(partial(self.on(site.ledger).failed, *facts))

    def lost(self, ledger: Ledger, mid: str, start: Start, cause: str, reason: str) -> None:
        self.on(ledger).rolled_back(mid, start, cause, reason)


#: Keys of its own in the ledger -> what names one of several, as docs/keys.md has it.
KEYS = {"owed": ""}
EXTENSION = ErrorTransactionsExtension
