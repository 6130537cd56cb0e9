"""One message on its way to the broker: all that Celery would have published, as it is kept in the outbox."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from kombu.utils import json as kombu_json

from celery_poison.headers import mid_of
from celery_poison.ledger.outbox import Lane
from celery_poison.reports import ReportedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message that Celery has serialised, routed and stamped.

    Attributes:
        exchange, routing_key: where it is published to.
        declare: a queue of the app that is declared first; empty: none.
        body: serialised, and compressed where that was wanted.
        headers, properties: plain data; kombu's JSON keeps dates, bytes and UUIDs apart.
        at: when it was stored, in seconds since 1970.
        event: fields of the event ``task-sent``, which the relay sends; None: nobody wants it.
        tied: it leaves with the success of a task (transaction-synchronous).
    """

    task: str
    id: str
    mid: str
    exchange: str
    routing_key: str
    declare: str
    body: bytes
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    at: float = field(default_factory=time.time)
    event: Mapping[str, Any] | None = None
    tied: bool = False

    @property
    def queue(self) -> str:
        """Its destination: all messages of one destination are sent in their order."""
        if not self.exchange:
            return self.routing_key
        return self.declare or f"{self.exchange}/{self.routing_key}"

    @property
    def lane(self) -> Lane:
        return Lane(_word(self.queue), tied=self.tied)

    def as_tied(self) -> Outgoing:
        """Return the same message as one of those that leave with the success of a task."""
        return replace(self, tied=True)

    def pack(self) -> bytes:
        """Return it as the ledger keeps it: task, id and mid, the rest as JSON, a line break, the body."""
        told = {name: getattr(self, name) for name in _TOLD}
        head = "\t".join((_word(self.task), _word(self.id), _word(self.mid), kombu_json.dumps(told)))
        return head.encode("utf-8", "surrogatepass") + b"\n" + self.body

    @classmethod
    def unpack(cls, packed: bytes) -> Outgoing:
        """Undo :meth:`pack`.

        Raises:
            ValueError: it is no packed message.
        """
        head, _, body = packed.partition(b"\n")
        task, id, mid, told = head.decode("utf-8", "surrogatepass").split("\t", 3)
        return cls(task=task, id=id, mid=mid, body=body, **_read(told))

    def as_dict(self) -> dict[str, Any]:
        """Return what may be shown of it: everything but the body, which nobody here decodes."""
        told = asdict(self)
        return {**told, "queue": self.queue, "body": None, "payload_bytes": len(self.body)}


def reported(outgoing: Outgoing) -> ReportedMessage:
    """Return what reports tell of a message that has not left."""
    return ReportedMessage.of(
        outgoing.headers, outgoing.body, outgoing.content_type, mid=outgoing.mid, queue=outgoing.queue
    )


def _word(text: str) -> str:
    """Return a name without what divides the parts of a packed message, and of a lane."""
    return text.replace("\t", " ").replace("\n", " ")


#: What is kept as JSON.
_TOLD = tuple(each.name for each in fields(Outgoing) if each.name not in ("task", "id", "mid", "body"))


def _read(told: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = kombu_json.loads(told)
    except ValueError:
        raise
    except Exception:  # somebody's own words that look like kombu's, and are not
        found = json.loads(told)
    return {name: found[name] for name in _TOLD if name in found}


def identity(headers: Mapping[str, Any], body: Any, task: str) -> tuple[str, str]:
    """Return task id and mid of a message that Celery is about to publish."""
    id = headers.get("id") or (body.get("id") if isinstance(body, dict) else None) or ""
    return str(id), mid_of({"id": id, "task": task, **headers})
