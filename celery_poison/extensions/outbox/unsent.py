"""The report of a message that could not be sent, and what is called for it (TP1-3)."""

from __future__ import annotations

from typing import Any

from celery_poison.basics.calling import gather
from celery_poison.broker.capture import Outgoing, reported
from celery_poison.extensions.outbox.packing import row_of
from celery_poison.extensions.outbox.send_failures import Cause
from celery_poison.rules.reports import Kind, Report


def send_failed(
    outgoing: Outgoing,
    queue: str,
    cause: Cause,
    *,
    seq: int,
    detail: str,
    blocked: bool,
    uncertain: bool = False,
) -> Report:
    """Return the report of a message that could not be sent; of a batch, of its first (TP1-3, table 2-4).

    Args:
        detail: what the broker said.
        blocked: the queue, or this task of it, is blocked by this failure.
        uncertain: it may have arrived all the same (rows 3 and 4).
    """
    kind, unsent = Kind.SEND_FAILED.value, reported(outgoing)
    return Report(
        kind=kind,
        id=f"{kind}:{unsent.mid}:{seq}",
        queue=queue,
        task=outgoing.task,
        cause=cause.value,
        reason=detail,
        queue_blocked=blocked,
        outbox_seq=seq,
        uncertain=uncertain,
        unsent=[unsent],
    )


def error_transactions(host: Any, report: Report) -> list[tuple[str, bytes]]:
    """Return lane and message of what is called for a message that was not sent (TP1-3)."""
    return [row_of(each) for each in gather(host.extensions.send_failed, host.complain, report)]
