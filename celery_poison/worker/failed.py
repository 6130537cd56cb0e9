"""Calls, in a worker, what a project has hung on the end of a task that a person has failed.

``fail`` stores the failure and resolves chord, chain and errbacks at once. ``on_failure``, ``after_return``
and the receivers of ``task_failure`` are the project's own code, and are called where that runs: ``fail``
sends a message to the queue that the failed one was in, for the task below. Where its worker dies meanwhile,
they are called again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import Celery, signals, states
from celery.utils.log import get_logger
from kombu.serialization import loads, prepare_accept_content

from celery_poison.basics.calling import tell
from celery_poison.basics.text import clean
from celery_poison.errors import GivenUp
from celery_poison.keep.body import unpacked
from celery_poison.keep.canvas import FAILED, context_of
from celery_poison.keep.stored_message import stored_message
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.plugin import plugin_of
from celery_poison.states import State
from celery_poison.task import PoisonTask

logger = get_logger("celery_poison")


def register(app: Celery) -> None:
    """Let this process's ``app`` take such messages; it is a guarded task as any other."""
    if FAILED not in app.tasks:

        @app.task(base=PoisonTask, name=FAILED, shared=False, ignore_result=True, rerun=True)
        def failed(mid: str, sentence: str) -> None:
            _call_hooks_of(app, mid, sentence)

        plugin = plugin_of(app)
        tell(plugin.extensions.serving, plugin.complain, app)


def _call_hooks_of(app: Celery, mid: str, sentence: str) -> None:
    ledger = plugin_of(app).open_ledger()
    queries = ledger.read
    try:
        raw, record = queries.message(mid), queries.record(mid)
    finally:
        ledger.client.close()
    if not raw or record is None:
        logger.error("celery_poison: message %s was purged: its on_failure is not called", mid)
        return
    # While a person fails it, it is reserved; whoever else knows its mid can send the task that calls this.
    is_failed = record.state == State.FAIL and record.resolution == "failed"
    if not is_failed and "deciding" not in raw:
        logger.error("celery_poison: message %s was not failed: its on_failure is not called", clean(mid))
        return
    call_hooks(app, record, raw, GivenUp(sentence))


def call_hooks(app: Celery, record: MessageRecord, raw: Mapping[str, bytes], error: GivenUp) -> None:
    """Call what the task of a failed message has for its failure, all of it, whatever some of it raises."""
    task: Any = app.tasks.get(record.task)
    if task is None:
        logger.error(
            "celery_poison: no worker of the queue %s knows the task %s any more: on_failure and after_return"
            " of %s are not called",
            *(record.queue, record.task, record.id),
        )
        return
    stored = stored_message(raw)
    args, kwargs = _call_of(app, stored)
    request = context_of(record, stored, raw.get("canvas"))
    request.update({"args": args, "kwargs": kwargs, "called_directly": False, "is_eager": False})
    task.request_stack.push(request)
    try:
        _tell(task, record.id, args, kwargs, error)
    finally:
        task.request_stack.pop()


def _tell(task: Any, id: str, args: Any, kwargs: Any, error: GivenUp) -> None:
    try:
        raise error
    except GivenUp:
        info = ExceptionInfo()
    try:
        task.on_failure(error, id, args, kwargs, info)
    finally:
        try:
            told = {"exception": error, "args": args, "kwargs": kwargs, "einfo": info}
            signals.task_failure.send(sender=task, task_id=id, traceback=error.__traceback__, **told)
        finally:
            task.after_return(states.FAILURE, error, id, args, kwargs, None)


def _call_of(app: Celery, stored: StoredMessage) -> tuple[Any, Any]:
    """Return the arguments of a message, decoded as for a run; none where that cannot be."""
    with suppress(Exception):
        accept = prepare_accept_content(app.conf.accept_content)
        body = loads(unpacked(stored), stored.content_type, stored.content_encoding, accept=accept)
        if isinstance(body, dict):  # protocol 1
            return body["args"], body["kwargs"]
        args, kwargs, _ = body
        return args, kwargs
    return (), {}
