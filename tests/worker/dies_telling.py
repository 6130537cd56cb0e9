"""Workers that are killed once, after one of the steps by which a caller is told of a conviction."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from celery_poison.extensions.telling import teller
from celery_poison.ledger.owed import Owed
from celery_poison.ledger.quarantine import QuarantineTransitions
from tests.worker.apps import build, here

app = build(os.environ, current=True)

_WHEN = os.environ["TELLING_DIES"]


def _dies_after(step: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def stepped(*args: Any, **options: Any) -> Any:
        result = call(*args, **options)
        if step == _WHEN and not here().all("telling", step):
            here().leave("telling", "", step)
            os.kill(-os.getpgrp(), signal.SIGKILL)
        return result

    return stepped


Owed.owe = _dies_after("owed", Owed.owe)  # type: ignore[method-assign]
QuarantineTransitions.store = _dies_after("stored", QuarantineTransitions.store)  # type: ignore[method-assign]
teller.call_in_worker = _dies_after("sent", teller.call_in_worker)
teller.store_failure = _dies_after("failed", teller.store_failure)
teller.call_hooks = _dies_after("told", teller.call_hooks)
