"""One effect per idempotency key, in the process that runs the task: asked before the body runs.

The user's function is called here and nowhere else, with the arguments as they were sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from celery import states
from celery.app.task import Task
from celery.utils.log import get_logger

from celery_poison.basics.parts import Tie
from celery_poison.errors import LedgerUnavailable
from celery_poison.extensions.once.claims import KEEP, Claims, words_of_keep
from celery_poison.extensions.once.settings import OnceSettings
from celery_poison.ledger import Ledger
from celery_poison.ledger.scripts import Code
from celery_poison.model import Start
from celery_poison.plugin import plugin_of
from celery_poison.upstream.requests import WaitsForKey

logger = get_logger("celery_poison")


def digest_of(task: str, key: Any) -> str:
    """Return the digest of the key that a user's function returned; two tasks never share one."""
    packed = b"\0" + key if isinstance(key, bytes) else json.dumps(key, sort_keys=True, default=str).encode()
    return hashlib.sha256(task.encode() + b"\0" + packed).hexdigest()[:32]


def once_per_key(
    ledger: Ledger,
    task: Task,
    options: OnceSettings,
    mid: str,
    start: Start,
    call: Callable[[], Any],
    arguments: tuple[Any, Mapping[str, Any]],
    kept_with_end: Callable[[], Tie | None] = lambda: None,
) -> tuple[Any, str]:
    """Return the result of ``call`` and no id; or result and id of the first message with the same key.

    Args:
        kept_with_end: returns what the body has tied to its success: its key is kept in the same step.

    Raises:
        WaitsForKey: the first one runs, or Redis is away and ``poison_fail_open`` is off.
    """
    assert options.idempotency_key is not None
    key = _key_of(task, options.idempotency_key, arguments)
    if key is None:
        return call(), ""
    effect = ledger.keys.of("effect", digest_of(task.name, key))
    try:
        code, first = Claims(ledger).claim(effect, mid, start)
    except LedgerUnavailable as error:
        if not plugin_of(task.app).settings.fail_open:
            raise WaitsForKey("") from None
        logger.error("celery_poison: %s runs without its idempotency key: %s", task.name, error)
    else:
        if code is Code.HELD:
            raise WaitsForKey(effect)
        if code is Code.DONE:
            return result_of(task, first), first
    result = call()
    if tied := kept_with_end():
        tied.add_to_success(KEEP, {"effect": effect}, words_of_keep(start.token, options.idempotency_window))
    else:
        _keep_key(ledger, task, effect, start.token, options.idempotency_window)
    return result, ""


def _key_of(task: Task, function: Callable[..., Any], arguments: tuple[Any, Mapping[str, Any]]) -> Any:
    try:
        return function(*arguments[0], **arguments[1])
    except Exception as error:
        sent = "it gets the arguments as they were sent; of a pydantic model that is its dict"
        error.add_note(f"celery_poison: raised by idempotency_key of {task.name}: {sent}")
        raise


def _keep_key(ledger: Ledger, task: Task, effect: str, token: str, window: float) -> None:
    try:
        if not Claims(ledger).keep(effect, token, window):
            logger.error("celery_poison: %s ran twice for one idempotency key", task.name)
    except LedgerUnavailable as error:
        logger.error("celery_poison: the idempotency key of %s is free again: %s", task.name, error)


def result_of(task: Task, id: str) -> Any:
    """Return the result that the first message of a key has stored; None where there is none."""
    try:
        if task.backend.as_uri() == "rpc://":  # results lie in the caller's own queue
            return None
        meta = task.backend.get_task_meta(id, cache=False)
        return meta["result"] if meta["status"] == states.SUCCESS else None
    except Exception:
        return None
