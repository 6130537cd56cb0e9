"""One effect per idempotency key (NEW-12), and marks in the task's own transaction.

``per_key`` stands around the body of a task with a key, ``claims`` keeps keys in the ledger; ``marks`` is for
users, as ``celery_poison.marks``. A message whose key is in use is parked by the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from celery_poison.extension import Arguments, Extension
from celery_poison.extensions.once.settings import OnceSettings
from celery_poison.ledger import Ledger
from celery_poison.model import Start


class Once(Extension):
    """Asks for the key before a body runs, and says when one is free."""

    def around_body(self, run: Any, task: Any, body: Callable[[], Any], arguments: Arguments) -> Any:
        from celery_poison.extensions.once.per_key import once_per_key  # not where an app only publishes

        options = run.recorder.policy(task.name).section(OnceSettings)
        if options.idempotency_key is None or not run.recorder.diverts(task.name, run.ticket):
            return body()
        who = run.serving.ledger, task, options, run.ticket.mid, Start.decode(run.entry)
        result, first = once_per_key(*who, body, arguments, lambda: run.tied)
        if first:
            run.remark = f"the result of {first}, which had its idempotency key first"
        return result

    def still_awaited(self, ledger: Ledger, awaited: Mapping[str, str]) -> Iterable[str]:
        from celery_poison.extensions.once.claims import Claims

        return Claims(ledger).still_held(awaited)


#: Keys of its own in the ledger -> what names one of several, as docs/keys.md has it.
KEYS = {"effect": "KEY"}
EXTENSION = Once
