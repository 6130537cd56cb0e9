"""A changed copy of a message: other arguments or another queue, and everything else as it was (NEW-6).

Bodies in JSON only, and nothing is evaluated. The copy keeps its task id, so that all that wait for the
original's result, its chord, its chain and its errbacks, hears of the copy; it is another message, with a mid
of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from kombu.compression import compress
from kombu.utils import json as kombu_json

from celery_poison.errors import IllegalTransition
from celery_poison.headers import EDITED, MARK, MID, PARK, RELEASE, TRIAL
from celery_poison.model import StoredMessage
from celery_poison.quarantine.arguments import fingerprint_of, shown_of_copy
from celery_poison.quarantine.body import BodyRefused, json_of

#: What was true of the original's copies in queues, and is not of its changed copy.
_STALE = (RELEASE, MARK, PARK, TRIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a copy has otherwise than its original.

    Attributes:
        args: all positional arguments; None: as they are.
        kwargs: all named arguments; None: as they are.
        values: name -> value of single arguments; a positional one goes by the name of its parameter.
        queue: that it is sent to; empty: as it is.
    """

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    queue: str = ""


class Call(NamedTuple):
    """A body of Celery's second message protocol; ``embed`` has its chord, chain, callbacks and errbacks."""

    args: list[Any]
    kwargs: dict[str, Any]
    embed: Any


def call_of(stored: StoredMessage) -> Call:
    """Return what a message calls its task with.

    Raises:
        BodyRefused: it is not JSON, too large to be unpacked here, or of another protocol.
        BodyBroken: it says JSON and is none.
    """
    match json_of(stored):
        case [list(args), dict(kwargs), embed]:
            return Call(args, kwargs, embed)
    raise BodyRefused("its body is not one of Celery's second message protocol, so that it cannot be edited")


def is_same(old: Call, new: Call) -> bool:
    """Whether nothing is changed; to a task ``1`` and ``true`` are not the same."""
    try:
        return repr(old) == repr(new)
    except RecursionError:  # nested as deep as reading allows: writing will refuse it
        return False


def changed_call(call: Call, change: Change, task: Any) -> Call:
    """Return the call with the change made.

    Args:
        task: knows the names of positional parameters; None where this app has no such task.

    Raises:
        IllegalTransition: the call has no argument of a name, and the task no parameter.
    """
    args = list(call.args if change.args is None else change.args)
    kwargs = dict(call.kwargs if change.kwargs is None else change.kwargs)
    positional, accepts, named = _parameters(task)
    for name, value in change.values.items():
        if name in kwargs:
            kwargs[name] = value
        elif name in positional[: len(args)]:
            args[positional.index(name)] = value
        elif accepts(name):
            kwargs[name] = value
        else:
            raise IllegalTransition(_unknown(task, name, named))
    return Call(args, kwargs, call.embed)


def _unknown(task: Any, name: str, named: list[str]) -> str:
    if task is None:
        return f"it is called without an argument {name!r}, and this app has no such task that could take it"
    return f"{task.name} has no argument {name!r}; it has: {', '.join(named) or 'none'}"


def _parameters(task: Any) -> tuple[list[str], Callable[[str], bool], list[str]]:
    """Return the positional names, what tells whether a name may be given, and the names that may be."""
    try:
        parameters = inspect.signature(task.run).parameters.values() if task is not None else ()
    except (TypeError, ValueError):
        parameters = ()
    kinds = {each.name: each.kind for each in parameters}
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    any_name = inspect.Parameter.VAR_KEYWORD in kinds.values()
    positional = [name for name, kind in kinds.items() if kind in by_position]
    named = [name for name, kind in kinds.items() if kind in by_name]
    return positional, lambda name: any_name or name in named, named


def check_fits(task: Any, call: Call) -> None:
    """Refuse a call that the task does not take, as Celery's own ``apply_async`` does.

    Raises:
        IllegalTransition: see there.
    """
    header = getattr(task, "__header__", None)
    if header is None or not task.typing:
        return
    try:
        header(*call.args, **call.kwargs)
    except TypeError as error:
        raise IllegalTransition(f"its task does not take these arguments: {error}; or use force") from None


def changed_copy(stored: StoredMessage, old: Call, new: Call, mid: str, copy_mid: str) -> StoredMessage:
    """Return the copy as its producer would have sent it: ``new`` instead of ``old``, the rest untouched.

    Raises:
        BodyRefused: a new argument is nothing that JSON knows, or too deeply nested.
    """
    headers = {name: value for name, value in stored.headers.items() if name not in _STALE}
    headers |= {MID: copy_mid, EDITED: mid}
    if is_same(old, new):
        return replace(stored, headers=headers)
    try:
        body = kombu_json.dumps([new.args, new.kwargs, new.embed]).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BodyRefused(f"the changed call cannot be written as JSON: {error}") from None
    shown = {
        "argsrepr": shown_of_copy(headers.get("argsrepr"), tuple(old.args), tuple(new.args)),
        "kwargsrepr": shown_of_copy(headers.get("kwargsrepr"), old.kwargs, new.kwargs),
    }
    headers |= {name: text for name, text in shown.items() if text is not None}
    if method := headers.get("compression"):
        body, _ = compress(body, method)
    return replace(stored, body=body, headers=headers)


def fingerprint_of_copy(
    stored: StoredMessage, task: str, secret: bytes, function: Callable[..., Any] | None
) -> str:
    """Return the fingerprint that a worker would give it: of what it calls its task with now.

    Args:
        secret: the ledger's; without it there are no fingerprints.
        function: the task's own. Where it fails, all arguments count, as in workers.
    """
    if not secret:
        return ""
    received = SimpleNamespace(
        body=stored.body, received=stored.body, headers=stored.headers, content_type=stored.content_type
    )
    try:
        return fingerprint_of(received, task, secret, function)
    except Exception:  # the user's own function
        return fingerprint_of(received, task, secret)
