"""Failing for good: a waiting caller hears of it from the result backend, the task's own code in a worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from celery import Celery, states
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.utils.log import get_logger

from celery_poison.broker.port import NoSuchQueue, NotPublished
from celery_poison.broker.publish import Publisher
from celery_poison.errors import GivenUp, IllegalTransition, PoisonError
from celery_poison.headers import MID
from celery_poison.keep.arguments import call_in, redacted
from celery_poison.keep.body import BodyBroken, BodyRefused, json_of
from celery_poison.keep.canvas import FAILED, context_of
from celery_poison.keep.stored_message import stored_message
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.plugin import plugin_of

logger = get_logger("celery_poison")

#: Properties that a copy for the same queue has, too.
_OF_THE_QUEUE = ("delivery_info", "delivery_mode", "priority", "body_encoding")


class ResultRefused(PoisonError):
    """The result backend is away, or the broker for a message; the message stays in quarantine."""


def sentence_of(record: MessageRecord, note: str) -> str:
    """Return the failure of a message as a sentence."""
    return f"given up in quarantine: {record.story}" + (f" ({note})" if note else "")


def store_failure(
    app: Celery,
    record: MessageRecord,
    kept: Mapping[str, bytes],
    *,
    note: str = "",
    force: bool = False,
    error: GivenUp | None = None,
) -> None:
    """Store FAILURE for the task, and resolve its chord, its chain and its errbacks, as a worker would.

    As there, an errback that takes ``(request, exc, traceback)`` is called here and now, every other is
    sent to a worker.

    Args:
        kept: the message as the ledger keeps it.
        force: where the canvas is not known, report to the task's own caller only.
        error: the failure; default: that it was given up.

    Raises:
        IllegalTransition: the task's result is SUCCESS already, or its canvas cannot be known here.
        ResultRefused: the result backend is away or refuses, or the broker does with an errback. What was
            notified before that stays so: failing the message again notifies it again.
    """
    stored = stored_message(kept)
    task = app.tasks.get(record.task)
    request = _context_to_fail(record, stored, kept.get("canvas"), force)
    request.update(_arguments_shown(app, record.task, stored))
    ignored = request.ignore_result or (task is not None and task.ignore_result)
    stores = not ignored or bool(task is not None and task.store_errors_even_if_ignored)
    error = error or GivenUp(sentence_of(record, note))
    try:
        backend = task.backend if task is not None else app.backend
        _refuse_success(backend, record.id)
        backend.mark_as_failure(record.id, error, request=request, store_result=stores, call_errbacks=True)
    except PoisonError:
        raise
    except Exception as refusal:  # each backend has errors of its own
        sentence = f"the failure could not be stored, or an errback not be sent: {refusal!r}"
        raise ResultRefused(sentence) from refusal


def _context_to_fail(
    record: MessageRecord, stored: StoredMessage, kept: bytes | None, force: bool
) -> Context:
    try:
        return context_of(record, stored, kept, force=False)
    except IllegalTransition as refusal:
        if not force:
            raise
        logger.warning(
            "celery_poison: the caller of Task %s[%s] hears of its failure; chord and errbacks do not: %s",
            *(record.task, record.id, refusal.__cause__),
        )
        return context_of(record, stored, kept)


def _arguments_shown(app: Celery, task: str, stored: StoredMessage) -> dict[str, Any]:
    """Return the arguments as a backend stores them with ``result_extended``, redacted.

    Of a body that is not JSON it is nothing, as for everyone who did not run it.
    """
    if not app.conf.find_value_for_key("extended", "result"):
        return {}
    try:
        body = redacted(app, plugin_of(app).settings.redact, task, json_of(stored))
        args, kwargs, _ = call_in(body)
    except (BodyBroken, BodyRefused):
        return {}
    return {"args": args, "kwargs": kwargs}


def _refuse_success(backend: Any, id: str) -> None:
    # Of rpc:// results lie in the caller's own queue: no other process can ask for them.
    is_readable = not isinstance(backend, DisabledBackend) and not backend.as_uri().startswith("rpc://")
    if is_readable and backend._get_task_meta_for(id)["status"] == states.SUCCESS:
        raise IllegalTransition(
            "its result is SUCCESS already, so no caller waits for it: discard it instead"
        )


def tell_worker(
    app: Celery, publisher: Publisher, record: MessageRecord, kept: Mapping[str, bytes], note: str
) -> None:
    """Have ``on_failure``, ``after_return`` and ``task_failure`` called in a worker of the message's queue.

    Raises:
        ResultRefused: the broker is away or refuses.
    """
    if record.task and record.task != FAILED:
        call_in_worker(app, publisher, record, kept, FAILED, (record.mid, sentence_of(record, note)))


def call_in_worker(
    app: Celery,
    publisher: Publisher,
    record: MessageRecord,
    kept: Mapping[str, bytes],
    task: str,
    args: tuple[str, ...],
) -> None:
    """Send a message for a task of our own to the queue of a message in quarantine.

    Raises:
        ResultRefused: the broker is away or refuses.
    """
    call = app.amqp.as_task_v2(uuid4().hex, task, args, ignore_result=True)
    stored = stored_message(kept)
    properties = {name: stored.properties[name] for name in _OF_THE_QUEUE if name in stored.properties}
    message = replace(
        stored,
        body=json.dumps(call.body).encode(),
        content_type="application/json",
        content_encoding="utf-8",
        headers={**call.headers, MID: uuid4().hex},
        properties={**properties, **call.properties},
    )
    try:
        publisher.publish(message, record.queue, message.headers)
    except NoSuchQueue as error:
        logger.warning("celery_poison: on_failure of %s[%s] is not called: %s", record.task, record.id, error)
    except NotPublished as refusal:
        sentence = f"its on_failure cannot be called in a worker: {refusal}"
        raise ResultRefused(sentence) from refusal
