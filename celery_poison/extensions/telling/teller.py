"""Tells the caller of a convicted message, in a worker of its queue, as ``fail`` does; the message stays.

It is reserved meanwhile, as for a person's decision. A worker that dies in between leaves the task that calls
this to the next one, which tells again: a caller's result is overwritten by the same failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from celery import Celery
from celery.utils.log import get_logger

from celery_poison.basics.text import clean
from celery_poison.broker.publish import Publisher
from celery_poison.desk.failing import ResultRefused, call_in_worker, store_failure
from celery_poison.errors import (
    DecisionPending,
    IllegalTransition,
    LedgerUnavailable,
    MessageNotFound,
    Quarantined,
    StaleDelivery,
)
from celery_poison.extensions.telling.settings import TellingSettings
from celery_poison.ledger import Ledger
from celery_poison.model import MessageRecord
from celery_poison.plugin import plugin_of
from celery_poison.policy import Policy
from celery_poison.rules.destinations import ACTOR
from celery_poison.states import State
from celery_poison.task import PoisonTask
from celery_poison.worker.failed import call_hooks

logger = get_logger("celery_poison")

#: The task that tells; seconds before it tries again, twice as long each time, and at most.
TOLD, PAUSE, LONGEST_PAUSE = "celery_poison.told", 5.0, 300.0


def register(app: Celery) -> None:
    """Let this process's ``app`` take the messages that ask for it."""
    if TOLD in app.tasks:
        return

    @app.task(
        base=PoisonTask, name=TOLD, bind=True, shared=False, ignore_result=True, max_retries=None, rerun=True
    )
    def told(self: PoisonTask, mid: str) -> None:
        try:
            tell_caller(app, mid)
        except (DecisionPending, ResultRefused, LedgerUnavailable) as error:
            pause = min(PAUSE * 2 ** min(self.request.retries, 10), LONGEST_PAUSE)
            raise self.retry(exc=error, countdown=pause) from None


def call_for(app: Celery, publisher: Publisher, record: MessageRecord, kept: Mapping[str, bytes]) -> None:
    """Have a message's caller told by a worker of its queue; raises as :func:`call_in_worker`."""
    call_in_worker(app, publisher, record, kept, TOLD, (record.mid,))


def tell_caller(app: Celery, mid: str) -> None:
    """Store the failure of a message in quarantine, and call what its task has for that; once.

    Raises:
        DecisionPending: a person decides about it at this moment.
        ResultRefused: the result backend is away or refuses.
        LedgerUnavailable: Redis is away.
    """
    ledger = plugin_of(app).open_ledger()
    try:
        queries = ledger.read
        record, kept = queries.record(mid), queries.message(mid)
        if record is None or not kept or record.state != State.NDLV or record.told:
            return
        policy = Policy.of(app.tasks.get(record.task), plugin_of(app).settings)
        if (
            policy.section(TellingSettings).tell != "conviction"
        ):  # whoever knows a mid can send the task that calls this
            logger.error("celery_poison: the caller of %s waits for a person's decision", clean(record.id))
            return
        decided = ledger.decisions.reserving(mid, "tell", ACTOR)
        with suppress(IllegalTransition, MessageNotFound), decided as number:  # else a person was faster
            _tell(app, ledger, record, kept, number)
    finally:
        ledger.client.close()


def _tell(app: Celery, ledger: Ledger, record: MessageRecord, kept: Mapping[str, bytes], number: int) -> None:
    sentence = f"in quarantine: {record.story}"
    error = Quarantined(sentence, record.mid, record.cause, record.evidence.source)
    try:
        # A canvas that cannot be known here hears nothing; its own caller does.
        store_failure(app, record, kept, force=True, error=error)
    except IllegalTransition as refused:  # its result is SUCCESS
        logger.warning("celery_poison: the caller of %s gets no failure: %s", record.id, refused)
    else:
        try:
            call_hooks(app, record, kept, error)
        except Exception:
            logger.exception("celery_poison: on_failure of %s[%s] failed", record.task, record.id)
    try:
        ledger.scripts.call(f"{__package__}:told", mid=record.mid, number=number)
    except StaleDelivery:
        logger.warning("celery_poison: %s left quarantine while its caller got the failure", record.id)
