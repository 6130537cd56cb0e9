"""How the outbox keeps a message: task, id and mid, the rest as JSON, a line break, the body."""

from __future__ import annotations

from dataclasses import fields

from kombu.utils import json as kombu_json

from celery_poison.broker.capture import Outgoing, read_json
from celery_poison.extensions.outbox.lanes import Lane

#: What is kept as JSON.
_TOLD = tuple(each.name for each in fields(Outgoing) if each.name not in ("task", "id", "mid", "body"))


def lane_of(outgoing: Outgoing) -> Lane:
    """Return where a message waits."""
    return Lane(_word(outgoing.queue), tied=outgoing.tied)


def row_of(outgoing: Outgoing) -> tuple[str, bytes]:
    """Return its lane and the packed message."""
    return str(lane_of(outgoing)), pack(outgoing)


def pack(outgoing: Outgoing) -> bytes:
    """Return a message as the outbox keeps it."""
    told = {name: getattr(outgoing, name) for name in _TOLD}
    words = map(_word, (outgoing.task, outgoing.id, outgoing.mid))
    head = "\t".join((*words, kombu_json.dumps(told)))
    return head.encode("utf-8", "surrogatepass") + b"\n" + outgoing.body


def unpack(packed: bytes) -> Outgoing:
    """Undo :func:`pack`.

    Raises:
        ValueError: it is no packed message.
    """
    head, _, body = packed.partition(b"\n")
    task, id, mid, told = head.decode("utf-8", "surrogatepass").split("\t", 3)
    found = read_json(told)
    known = {name: found[name] for name in _TOLD if name in found}
    return Outgoing(task=task, id=id, mid=mid, body=body, **known)


def _word(text: str) -> str:
    """Return a name without what divides the parts of a packed message, and of a lane."""
    return text.replace("\t", " ").replace("\n", " ")
