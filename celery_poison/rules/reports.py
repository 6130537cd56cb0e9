"""The reports of error transactions (TP1-3), as plain data that every serializer of Celery takes.

docs/error-transactions.md holds the schema; a test compares. A report is the first argument of its signature.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from celery_poison.headers import known_as

#: Version of the schema.
SCHEMA = 1
#: Bytes up to which a body is part of a report.
MAX_BODY = 256 * 1024
#: How the root id begins of an error transaction, and of whatever it publishes itself.
ROOT = "poison-report-"


class ReportKind(StrEnum):
    """Why an error transaction is started; the values are the names of the settings without their prefix."""

    SEND_FAILED = "on_send_failed"
    ROLLBACK = "on_rollback"
    QUARANTINE = "on_quarantine"
    DISCARD = "on_discard"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedMessage:
    """One message, as reports tell of it.

    Attributes:
        id: task id; ``root_id`` and ``retries`` as Celery has them.
        mid: of this one message.
        queue: that it was sent to.
        args, kwargs: None where the body is not plain JSON, or too large.
        body: in base64, where ``args`` is None and the body is not too large.
        payload_bytes: size of the body.
    """

    id: str = ""
    mid: str = ""
    task: str = ""
    queue: str = ""
    root_id: str = ""
    retries: int = 0
    content_type: str = ""
    payload_bytes: int = 0
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    body: str | None = None

    @classmethod
    def of(
        cls,
        headers: Mapping[str, Any],
        body: bytes | str,
        content_type: str,
        *,
        mid: str,
        queue: str,
        **more: Any,
    ) -> Self:
        """Tell of a message by its headers and its body.

        Args:
            more: fields that are known better than by the headers.
        """
        raw = body.encode("utf-8", "replace") if isinstance(body, str) else bytes(body)
        fields: dict[str, Any] = {
            "id": known_as(headers.get("id") or ""),
            "task": known_as(headers.get("task") or ""),
            "root_id": known_as(headers.get("root_id") or ""),
            "retries": headers.get("retries") if isinstance(headers.get("retries"), int) else 0,
            "content_type": content_type,
            "payload_bytes": len(raw),
        }
        plain = content_type == "application/json" and not headers.get("compression")
        return cls(**{**fields, "mid": mid, "queue": queue, **_contents(raw, plain=plain), **more})


def _contents(body: bytes, *, plain: bool) -> dict[str, Any]:
    if len(body) > MAX_BODY:
        return {}
    try:
        args, kwargs, _ = json.loads(body) if plain else ("", "", "")
        if isinstance(args, list) and isinstance(kwargs, dict):
            return {"args": args, "kwargs": kwargs}
    except (ValueError, TypeError, RecursionError):
        pass
    return {"body": base64.b64encode(body).decode()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The first argument of an error transaction: table 2-4 of the Hitachi source, quarantine and discard.

    Attributes:
        id: of this report; the same when it is sent again.
        at: when it was made, in seconds since 1970.
        queue, task: the destination: of the failed send; of the first unsent message of a rollback; else of
            the message itself.
        cause: a stable word; ``reason`` is for people.
        queue_blocked: this failure blocked the destination.
        outbox_seq: number in the outbox; None where the message has none.
        uncertain: the failed send may have arrived all the same.
        input: the message whose task ended, or that was given up; of a failed send None.
        unsent: of a failed send the message, of a batch its first; of a rollback what its task had published
            within ``publishing()``, in order.
    """

    kind: str
    id: str
    schema: int = SCHEMA
    at: float = field(default_factory=time.time)
    queue: str = ""
    task: str = ""
    cause: str = ""
    reason: str = ""
    queue_blocked: bool = False
    outbox_seq: int | None = None
    uncertain: bool = False
    input: ReportedMessage | None = None
    unsent: Sequence[ReportedMessage] = ()

    @classmethod
    def about(
        cls,
        kind: ReportKind,
        input: ReportedMessage,
        cause: str,
        reason: str = "",
        *,
        token: str = "",
        unsent: Sequence[ReportedMessage] = (),
    ) -> Self:
        """Report what became of a message that was delivered.

        Args:
            token: of the start that ended; empty where a person decided.
        """
        destination = unsent[0] if unsent else (ReportedMessage() if kind is ReportKind.ROLLBACK else input)
        return cls(
            kind=kind.value,
            id=f"{kind.value}:{input.mid}:{token}",
            queue=destination.queue,
            task=destination.task,
            cause=cause,
            reason=reason,
            input=input,
            unsent=tuple(unsent),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {**asdict(self), "unsent": [asdict(each) for each in self.unsent]}
