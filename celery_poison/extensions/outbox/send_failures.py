"""Why a message could not be sent, and what is done about it: table 2-3 of the requirements, row by row."""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

import amqp.exceptions
import redis
from kombu.exceptions import ConnectionLimitExceeded, OperationalError

from celery_poison.basics.calling import gather
from celery_poison.broker.capture import Outgoing, reported
from celery_poison.errors import PoisonError
from celery_poison.extensions.outbox.lanes import Copy
from celery_poison.extensions.outbox.packing import row_of
from celery_poison.rules.reports import Report, ReportKind


class Blocks(Enum):
    """When a cause blocks what it waits for."""

    ALWAYS = "always"
    WHERE_DEFINED = "where poison_outbox_auto_block says so"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class SendFailure:
    """One row of table 2-3.

    Attributes:
        number: in the table.
        retried: it is tried again, ``poison_outbox_retries`` times, before it counts as failed.
        uncertain: the message may have arrived all the same.
        by_task: only messages of the same task wait, else all of the queue.
    """

    number: int
    sentence: str
    retried: bool = False
    uncertain: bool = False
    by_task: bool = False
    blocks: Blocks = Blocks.ALWAYS


class Cause(StrEnum):
    """Why a message could not be sent; the values are the words of the journal, of JSON and of reports."""

    DEFINITION = "definition"
    TRANSPORT = "transport"
    NO_CONFIRMATION = "no_confirmation"
    NOT_REPLICATED = "not_replicated"
    RESOURCES = "resources"
    TASK_BLOCKED = "task_blocked"
    UNROUTABLE = "unroutable"
    UNKNOWN_TASK = "unknown_task"
    BAD_MESSAGE = "bad_message"

    @property
    def row(self) -> SendFailure:
        return _ROWS[self]

    def blocks(self, queue: str, auto_block: bool | Collection[str]) -> bool:
        """Whether this cause blocks the queue, or the task of it, that it is about."""
        if self.row.blocks is Blocks.WHERE_DEFINED:
            return auto_block if isinstance(auto_block, bool) else queue in auto_block
        return self.row.blocks is Blocks.ALWAYS


_ROWS = {
    Cause.DEFINITION: SendFailure(
        2, "the broker refuses the queue, the exchange or the size, as they are configured"
    ),
    Cause.TRANSPORT: SendFailure(
        3,
        "the broker is not reachable, or the connection broke",
        retried=True,
        uncertain=True,
        blocks=Blocks.WHERE_DEFINED,
    ),
    Cause.NO_CONFIRMATION: SendFailure(
        4,
        "the broker did not confirm the message in time",
        retried=True,
        uncertain=True,
        blocks=Blocks.WHERE_DEFINED,
    ),
    Cause.NOT_REPLICATED: SendFailure(
        5, "the broker has too few replicas to take the message", retried=True, blocks=Blocks.WHERE_DEFINED
    ),
    Cause.RESOURCES: SendFailure(
        6, "the broker or the queue is full, or short of memory or disk", retried=True, blocks=Blocks.NEVER
    ),
    Cause.TASK_BLOCKED: SendFailure(
        7,
        "messages of this task are blocked (`celery poison block --task`)",
        by_task=True,
        blocks=Blocks.WHERE_DEFINED,
    ),
    Cause.UNROUTABLE: SendFailure(8, "the broker knows no such queue or exchange, or no queue is bound"),
    Cause.UNKNOWN_TASK: SendFailure(
        9, "the worker that received it knows no task of this name", by_task=True
    ),
    Cause.BAD_MESSAGE: SendFailure(
        10, "a header, a property or the priority is nothing that can be sent", by_task=True
    ),
}


class NotSent(PoisonError):
    """A message, or a batch, did not get to the broker."""

    def __init__(
        self, cause: Cause, detail: str, *, reached: bool = True, confirmed: Sequence[Copy] = ()
    ) -> None:
        super().__init__(f"{cause.row.sentence}: {detail}")
        self.cause = cause
        self.detail = detail
        #: Whether the broker may have the message all the same.
        self.reached = reached
        #: Of a batch: what the broker certainly has.
        self.confirmed = confirmed


_REPLY_CODES = {
    311: Cause.DEFINITION,  # content too large
    312: Cause.UNROUTABLE,
    403: Cause.DEFINITION,  # access refused
    404: Cause.UNROUTABLE,
    405: Cause.RESOURCES,  # locked by another connection
    406: Cause.DEFINITION,  # other arguments than those of the queue, or a message above its limit
    501: Cause.BAD_MESSAGE,
    502: Cause.BAD_MESSAGE,
    505: Cause.BAD_MESSAGE,
    506: Cause.RESOURCES,
    530: Cause.DEFINITION,  # no such virtual host
    540: Cause.BAD_MESSAGE,
}


def cause_of(error: BaseException) -> Cause:
    """Tell what an exception of a transport means."""
    if isinstance(error, OperationalError) and error.__cause__ is not None:
        return cause_of(error.__cause__)
    if isinstance(error, (redis.exceptions.OutOfMemoryError, ConnectionLimitExceeded, MemoryError)):
        return Cause.RESOURCES
    if isinstance(error, redis.exceptions.ResponseError):
        return _of_redis(str(error))
    if isinstance(error, (redis.exceptions.AuthenticationError, amqp.exceptions.AccessRefused)):
        return Cause.DEFINITION
    if isinstance(error, amqp.exceptions.MessageNacked):
        return Cause.RESOURCES
    code: Any = getattr(error, "reply_code", None)
    if code in _REPLY_CODES:
        return _REPLY_CODES[code]
    if isinstance(error, (OSError, redis.RedisError, amqp.exceptions.AMQPError, socket.timeout)):
        return Cause.TRANSPORT
    if isinstance(error, (struct.error, ValueError, TypeError, KeyError, AttributeError, OverflowError)):
        return Cause.BAD_MESSAGE
    return Cause.TRANSPORT


def _of_redis(text: str) -> Cause:
    if "NOREPLICAS" in text:  # in a pipeline the command stands before it
        return Cause.NOT_REPLICATED
    if "OOM " in text or "MISCONF " in text:
        return Cause.RESOURCES
    refused = ("NOPERM", "NOAUTH", "WRONGTYPE", "WRONGPASS")
    return Cause.DEFINITION if any(word in text for word in refused) else Cause.TRANSPORT


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
    kind, unsent = ReportKind.SEND_FAILED.value, reported(outgoing)
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
