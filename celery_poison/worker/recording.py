"""What writes the starts and ends of a process that runs tasks, as the app's settings want it."""

from __future__ import annotations

from collections.abc import Mapping

from celery_poison.ledger import Ledger
from celery_poison.ledger.wire import Wire
from celery_poison.policy import Policy
from celery_poison.settings import Settings
from celery_poison.worker.attempt import Recorder
from celery_poison.worker.durable import Durable


def open_durable(settings: Settings, ledger: Ledger, wire: Wire) -> Durable | None:
    """Return what makes starts safe; None where they need not be (``poison_durability="process"``)."""
    if settings.durability != "sync":
        return None
    return Durable(ledger.client, wire, fail_open=settings.fail_open)


def open_recorder(
    settings: Settings,
    ledger: Ledger,
    wire: Wire,
    node: str,
    policies: Mapping[str, tuple[Policy, bool]],
    durable: Durable | None,
) -> Recorder:
    """Return the recorder of the worker on ``node``."""
    journalled = settings.journal == "attempts"
    maxlen = settings.journal_maxlen if journalled else None
    return Recorder(wire, ledger.keys, node, policies, maxlen, durable, settings.release)
