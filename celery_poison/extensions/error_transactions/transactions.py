"""Starts error transactions (TP1-3): signatures that are called with what became of a message.

Each is owed before its decision is recorded (``ledger/owed.py``), and so sent at least once; its report has
the same id every time.

Error transactions never start error transactions, nor does what they publish.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from celery import Celery
from celery.canvas import Signature
from celery.utils.log import get_logger

from celery_poison.broker.capture import Outgoing, captured
from celery_poison.errors import LedgerUnavailable
from celery_poison.extensions.error_transactions.settings import ErrorTransactionsSettings
from celery_poison.keep.stored_message import original, stored_message
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.owed import Owed
from celery_poison.model import MessageRecord, Start
from celery_poison.plugin import plugin_of
from celery_poison.policy import Policy
from celery_poison.rules.reports import ROOT, Report, ReportedMessage, ReportKind

logger = get_logger("celery_poison")


def told_of(message: Any, *, mid: str, start: Start, opened: bool = True) -> ReportedMessage:
    """Return a message that was received, as reports show it.

    Args:
        opened: its body may be read: nothing died of that.
    """
    kept, whose = original(message), {"mid": mid, "queue": start.queue, "id": start.id, "task": start.task}
    reported = ReportedMessage.of(kept.headers, kept.body if opened else b"", kept.content_type, **whose)
    return reported if opened else replace(reported, body=None, payload_bytes=len(kept.body))


def signature_for(app: Celery, kind: ReportKind, task: str, queue: str) -> Signature | None:
    """Return the signature to start: the task's own, the app's for that queue, or the app's for all."""
    policy = Policy.of(app.tasks.get(task), plugin_of(app).settings)
    chosen = getattr(policy.section(ErrorTransactionsSettings), kind.value)
    if isinstance(chosen, Mapping) and not isinstance(chosen, Signature):
        chosen = chosen.get(queue) or chosen.get("*")
    if not chosen:
        return None
    return app.signature(chosen) if isinstance(chosen, str) else chosen.clone()


def for_failed_send(app: Celery, report: Report) -> list[Outgoing]:
    """Return the error transactions of a message that the outbox could not send (ERRTRNS)."""
    signature = signature_for(app, ReportKind.SEND_FAILED, report.task, report.queue)
    if signature is None or report.unsent[0].root_id.startswith(ROOT):
        return []
    taken: list[Outgoing] = []

    def take(outgoing: Outgoing) -> bool:
        taken.append(outgoing)
        return True

    with captured(take):
        signature.apply_async(args=(report.as_dict(),), root_id=ROOT + report.id)
    return taken


class ErrorTransactions:
    """Starts the error transactions of one app; everything here waits for Redis and for the broker."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._complained: set[str] = set()
        self._owed = Owed(ledger, ledger.keys.of("owed"), lambda id, owed: self._pay(id, owed))
        #: Sends what has been owed for too long (in the active monitor); returns how many were sent.
        self.pay_late = self._owed.pay_late

    def are_wanted(self, kind: ReportKind, task: str, queue: str, root_id: str = "") -> bool:
        """Whether a report is wanted for a message of ``task`` from ``queue``."""
        if root_id.startswith(ROOT) or plugin_of(self._app).settings.observe_only:
            return False
        return signature_for(self._app, kind, task, queue) is not None

    @contextmanager
    def owing(self, report: Report) -> Iterator[None]:
        """Owe a report while its decision is being recorded, and send it as soon as it is.

        Raises:
            LedgerUnavailable: Redis is away. The report stays owed, since the decision may be on record.
        """
        about = report.input or ReportedMessage()
        task, queue = about.task, about.queue
        if not self.are_wanted(ReportKind(report.kind), task, queue, about.root_id):
            yield
            return
        with self._owed.owing(report.id, {"task": task, "queue": queue, "report": report.as_dict()}):
            yield

    @contextmanager
    def discarding(
        self, record: MessageRecord, kept: Callable[[str], Mapping[str, bytes]], reason: str
    ) -> Iterator[None]:
        """The same, while a message in quarantine is discarded; ``kept`` reads it by its mid."""
        if not self.are_wanted(ReportKind.DISCARD, record.task, record.queue):
            yield
            return
        stored = stored_message(kept(record.mid))
        whose = {"mid": record.mid, "queue": record.queue, "id": record.id, "task": record.task}
        reported = ReportedMessage.of(stored.headers, stored.body, stored.content_type, **whose)
        with self.owing(Report.about(ReportKind.DISCARD, reported, record.cause, reason)):
            yield

    def tell(self, report: Report) -> None:
        """Send a report of what is on record already."""
        with self.owing(report):
            pass

    # --- what a start leaves for reports of its failure --------------------------------------------

    def failed(self, kind: ReportKind, message: Any, mid: str, start: Start, cause: str, reason: str) -> None:
        """Tell of a start that failed, or discarded its message, in a worker that lives."""
        _, unsent = self._attempt(start.token)
        reported = told_of(message, mid=mid, start=start)
        self.tell(Report.about(kind, reported, cause, reason, token=start.token, unsent=unsent))
        self._forget_attempt(start.token)

    def rolled_back(self, mid: str, start: Start, cause: str, reason: str) -> None:
        """Tell of a start whose worker has died, if it left something to tell of."""
        if not self.are_wanted(ReportKind.ROLLBACK, start.task, start.queue):
            return
        input, unsent = self._attempt(start.token)
        if input is not None:
            reported = replace(input, mid=mid, queue=start.queue, task=start.task)
            self.tell(
                Report.about(ReportKind.ROLLBACK, reported, cause, reason, token=start.token, unsent=unsent)
            )
            self._forget_attempt(start.token)

    def _attempt(self, token: str) -> tuple[ReportedMessage | None, list[ReportedMessage]]:
        """Return the message of a start and what it would have sent, as its process has written them down."""
        with clear_errors("reading an attempt"):
            rows: Any = self._ledger.client.lrange(self._ledger.keys.attempt(token), 0, -1)
        told = []
        for row in rows:
            with suppress(ValueError, TypeError):  # somebody else's
                told.append(ReportedMessage(**json.loads(row)))
        return (told[0], told[1:]) if told else (None, [])

    def _forget_attempt(self, token: str) -> None:
        with clear_errors("forgetting an attempt"):
            self._ledger.client.delete(self._ledger.keys.attempt(token))

    def _pay(self, id: str, owed: Mapping[str, Any]) -> bool:
        try:
            report, task = owed["report"], str(owed["task"])
            kind = ReportKind(report["kind"])
            signature = signature_for(self._app, kind, task, owed["queue"])
        except (ValueError, TypeError, LookupError):  # somebody else's
            return False
        if signature is not None:
            try:
                signature.apply_async(args=(report,), root_id=ROOT + id, retry=False)
            except LedgerUnavailable:
                raise
            except Exception as error:  # the broker's, or the signature's own
                sentence = f"{kind} of {task} cannot be sent yet: {error!r}"
                if sentence not in self._complained:  # once; the active monitor tries again
                    self._complained.add(sentence)
                    logger.error("celery_poison: %s; the active monitor tries again", sentence)
                return False
            logger.info("celery_poison: sent %s of %s: %s", kind, task, signature)
        return True
