"""What the journal tells about a message beside its counts: its fingerprint and its arguments' form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from celery_poison.quarantine.fingerprint import Arguments, arguments_of, hash_of, original_of

#: Bytes up to which a body is read for this: it costs more than the rest of a task's bookkeeping.
READABLE = 64 * 1024
#: Arguments of either kind that a shape tells of, and characters of it.
_ARGUMENTS, _LENGTH = 20, 200

_KINDS = {
    int: "int",
    str: "str",
    float: "float",
    bool: "bool",
    type(None): "none",
    list: "list",
    dict: "dict",
}


class Given(NamedTuple):
    """What a pool process was given to run."""

    body: Any
    content_type: Any
    request: Mapping[str, Any]


class Traits(NamedTuple):
    """Both are empty where they are not known."""

    fingerprint: str = ""
    shape: str = ""


UNKNOWN = Traits()


def traits_of(given: Given, task: str, secret: bytes, *, asks_user: bool) -> Traits:
    """Return what tells equal messages; never raises.

    Args:
        secret: the ledger's; empty while it is not known.
        asks_user: its task has a fingerprint function of its own, which is not run for this.
    """
    body = given.body
    # What is compressed was opened before it came here, and its fingerprint is that of the original.
    if not isinstance(body, (str, bytes)) or len(body) > READABLE or given.request.get("compression"):
        return UNKNOWN
    try:
        arguments = arguments_of(body) if given.content_type == "application/json" else None
        fingerprint = hash_of(secret, task, body, arguments) if secret and not asks_user else ""
        return Traits(fingerprint, shape_of(arguments) if arguments else "")
    except Exception:  # nothing that somebody sends may end in a failure that is ours
        return UNKNOWN


def traits_of_message(message: Any, task: str, secret: bytes, *, asks_user: bool) -> Traits:
    """The same, where the message is as it was received."""
    body, headers = original_of(message)
    return traits_of(Given(body, message.content_type, headers), task, secret, asks_user=asks_user)


def shape_of(arguments: Arguments) -> str:
    """Return the form of a task's arguments, without any value: ``int,str;page=str``."""
    args, kwargs = arguments
    shape = ",".join([_KINDS[type(value)] for value in args[:_ARGUMENTS]])
    if len(args) > _ARGUMENTS:
        shape += ",..."
    if kwargs:
        names = sorted(kwargs)
        told = [f"{_name(name)}={_KINDS[type(kwargs[name])]}" for name in names[:_ARGUMENTS]]
        shape += ";" + ",".join(told)
        if len(names) > _ARGUMENTS:
            shape += ",..."
    return shape if len(shape) <= _LENGTH else shape[:_LENGTH] + "..."


def _name(name: str) -> str:
    # A task that takes any keyword may be given data as names.
    return name if name.isidentifier() and len(name) <= 40 else "?"
