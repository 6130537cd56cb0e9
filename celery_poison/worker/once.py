"""One effect per idempotency key: asked in the process that runs the task, before its body does (NEW-12).

The user's function is called here and nowhere else, with the arguments as the task gets them. Tasks without a
key ask nobody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery import states
from celery.app.task import Task
from celery.utils.log import get_logger

from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger import Ledger
from celery_poison.ledger.effects import Turn
from celery_poison.model import Start
from celery_poison.plugin import plugin_of
from celery_poison.policy import Policy
from celery_poison.requests import WaitsForKey
from celery_poison.worker.tied import Tied

logger = get_logger("celery_poison")


def digest_of(task: str, key: Any) -> str:
    """Return what stands for the result of a user's function; keys of two tasks are never the same."""
    material = key if isinstance(key, bytes) else json.dumps(key, sort_keys=True, default=str).encode()
    return hashlib.sha256(task.encode() + b"\0" + material).hexdigest()[:32]


@dataclass(eq=False, repr=False)
class OncePerKey:
    """One run of a task that may have a key.

    Args:
        mid: of the message that runs.
        start: of this run.

    Attributes:
        first: task id of the message whose result this one gave; empty where its own body ran.
    """

    ledger: Ledger
    task: Task
    policy: Policy
    mid: str
    start: Start
    first = ""

    def run(
        self,
        body: Callable[..., Any],
        args: Any,
        kwargs: Mapping[str, Any],
        kept_with_end: Callable[[], Tied | None] = lambda: None,
    ) -> Any:
        """Return what ``body`` does, or did for the first message with the same key.

        Args:
            kept_with_end: returns what the body has tied to its success: its key is kept in the same step.

        Raises:
            WaitsForKey: the first one runs, or Redis is away and ``poison_fail_open`` is off.
            Exception: whatever the body raises, or the user's function.
        """
        assert self.policy.idempotency_key is not None
        key = self.policy.idempotency_key(*args, **kwargs)
        if key is None:
            return body(*args, **kwargs)
        effect = self.ledger.effect_of(digest_of(self.task.name, key))
        if not self._is_its_turn(effect):
            return result_of(self.task, self.first)
        result = body(*args, **kwargs)
        if tied := kept_with_end():
            tied.keep(effect, self.policy.idempotency_window)
        else:
            self._has_returned(effect)
        return result

    def _is_its_turn(self, effect: str) -> bool:
        try:
            claim = self.ledger.claim_effect(effect, self.mid, self.start)
        except LedgerUnavailable as error:
            if not plugin_of(self.task.app).settings.fail_open:
                raise WaitsForKey("") from None
            logger.error("celery_poison: %s runs without its idempotency key: %s", self.task.name, error)
            return True
        if claim.turn is Turn.WAIT:
            raise WaitsForKey(effect)
        self.first = claim.first
        return claim.turn is Turn.RUN

    def _has_returned(self, effect: str) -> None:
        try:
            kept = self.ledger.keep_effect(effect, self.start.token, self.policy.idempotency_window)
        except LedgerUnavailable as error:
            logger.error("celery_poison: the idempotency key of %s is free again: %s", self.task.name, error)
        else:
            if not kept:
                logger.error("celery_poison: %s ran twice for one idempotency key", self.task.name)


def result_of(task: Task, id: str) -> Any:
    """Return the result that the first message of a key has stored; None where there is none."""
    try:
        if task.backend.as_uri() == "rpc://":  # results lie in the caller's own queue
            return None
        meta = task.backend.get_task_meta(id, cache=False)
        return meta["result"] if meta["status"] == states.SUCCESS else None
    except Exception:
        return None
