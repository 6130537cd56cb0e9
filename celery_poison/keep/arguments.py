"""A call's arguments: as one short line, without what is hidden, and as a hash that equal messages share.

They are read from bodies in JSON, and from nothing else. Positional arguments have the names of the task's
parameters, so that only a process that knows the task can hide. A producer hides by ``argsrepr`` and
``kwargsrepr``: where these are not what Celery would have made of the body, they are shown instead.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.utils.saferepr import saferepr

from celery_poison.broker.envelope import to_bytes
from celery_poison.headers import FAILURES, OURS
from celery_poison.keep.body import BodyBroken, json_of
from celery_poison.model import StoredMessage

#: Bytes of a body that is read for this; characters of the line, and of one value in it.
_BYTES_READ, _LONGEST_LINE, _LONGEST_VALUE = 64 * 1024, 200, 80
HIDDEN = "(hidden)"

#: Headers and properties that Celery, kombu and this package write, and that hold no arguments.
_PLAIN = frozenset(
    (
        *("lang", "task", "id", "eta", "expires", "group", "group_index", "retries", "timelimit"),
        *("root_id", "parent_id", "origin", "ignore_result", "replaced_task_nesting", "compression"),
        *("correlation_id", "reply_to", "delivery_mode", "delivery_info", "priority", "body_encoding"),
        *("delivery_tag", "content_type", "content_encoding", "timestamp", "message_id"),
        *(name for name in OURS if name != FAILURES),
    )
)
#: Characters of what Celery's producers send along of either kind of arguments.
_SENT = 1024

#: ``poison_redact``: True hides everything.
Redact = Sequence[str] | bool


def arguments(app: Celery, redact: Redact, task: str, stored: StoredMessage) -> str:
    """Return e.g. ``42, "a.png", key="(hidden)"``; the empty string where the body is not small JSON."""
    try:
        body = json_of(stored, _BYTES_READ)
        shown = redacted(app, redact, task, body)
        line = _said_instead(stored.headers, body)
        if line and shown != body:
            line = HIDDEN  # whether the producer hides the same is not known
        # Half a surrogate pair is good JSON, and nothing that Redis takes.
        if not line:
            args, kwargs, _ = call_in(shown)
            values = [*map(_brief, args), *(f"{name}={_brief(value)}" for name, value in kwargs.items())]
            line = ", ".join(values) or "no arguments"
        return _cut(line, _LONGEST_LINE).encode("utf-8", "replace").decode()
    except Exception:  # nothing that a publisher sends may end in a failure that is ours
        return ""


def changes(
    app: Celery, redact: Redact, task: str, headers: Mapping[str, Any], old: Any, new: Any
) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each argument that differs between two decoded bodies, its value before, and after.

    Of an argument that is not sent, the value is its parameter's default, which is said, or a dash.

    Args:
        headers: the original's: whoever hides arguments in them hides the changed ones, too.
    """
    redact = True if _said_instead(headers, old) else redact
    before, after = (_by_name(app, redact, task, body) for body in (old, new))
    for name in {**before, **after}:
        if repr(before.get(name)) == repr(after.get(name)):
            continue
        was, will_be = (_with_default(app, redact, task, name, sent) for sent in (before, after))
        if was == will_be and HIDDEN in was:
            will_be += " (another)"
        elif was == will_be and name in before and name in after:
            was, will_be = (f"{was} ({len(json.dumps(sent[name][0])):,} bytes)" for sent in (before, after))
        yield name, was, will_be


def _by_name(app: Celery, redact: Redact, task: str, body: Any) -> dict[str, tuple[Any, Any]]:
    """Return each argument's value and what is shown of it; positional ones by their parameters' names."""
    args, kwargs, _ = call_in(body)
    shown_args, shown_kwargs, _ = call_in(redacted(app, redact, task, body))
    by_name: dict[str, tuple[Any, Any]] = {}
    for number, (name, *values) in enumerate(zip(_parameters(app, task), args, shown_args, strict=False)):
        by_name[name if name and name not in by_name else f"{name}[{number}]"] = (values[0], values[1])
    return by_name | {name: (value, shown_kwargs[name]) for name, value in kwargs.items()}


def shown_by_name(app: Celery, redact: Redact, task: str, stored: StoredMessage) -> dict[str, Any]:
    """Return the arguments of a small body in JSON that are not hidden; where its producer hides any, none.

    Raises:
        BodyBroken, BodyRefused: it holds none.
    """
    body = json_of(stored, _BYTES_READ)
    if _said_instead(stored.headers, body):
        return {}
    named = _by_name(app, redact, task, body).items()
    return {name: shown for name, (_, shown) in named if not (isinstance(shown, str) and shown == HIDDEN)}


def _with_default(app: Celery, redact: Redact, task: str, name: str, sent: Mapping[str, Any]) -> str:
    if name in sent:
        return _brief(sent[name][1])
    try:
        default = inspect.signature(app.tasks[task].run).parameters[name].default
        return f"{_brief(_hide(default, _patterns(redact), name))} (default)"
    except (KeyError, TypeError, ValueError):  # no such parameter, none without a default, none that is JSON
        return "-"


def _said_instead(headers: Mapping[str, Any], body: Any) -> str:
    """Return the producer's own text for people instead of the arguments; empty: none."""
    said = [headers.get("argsrepr"), headers.get("kwargsrepr")]
    real = [saferepr(each) for each in call_in(body)[:2]]
    pairs = zip(said, real, strict=True)
    if all(text is None or _bracketed(str(text)) == _bracketed(own) for text, own in pairs):
        return ""
    return " ".join(str(text) for text in said if text not in (None, "()", "[]", "{}"))


def shown_of_copy(shown: Any, old: Any, new: Any) -> Any:
    """Return ``argsrepr`` or ``kwargsrepr`` of a changed copy: hidden where the producer hid the original's.

    Args:
        shown: the original's; None where it has none.
        old, new: the arguments of the original and of its copy.
    """
    if shown is None or repr(old) == repr(new):
        return shown
    honest = {_bracketed(saferepr(old)), _bracketed(saferepr(old, _SENT))}
    return saferepr(new, _SENT) if _bracketed(str(shown)) in honest else HIDDEN


def _bracketed(text: str) -> str:
    # JSON knows no tuples.
    return text.replace("(", "[").replace(",)", "]").replace(")", "]")


def redacted(app: Celery, redact: Redact, task: str, body: Any) -> Any:
    """Return a decoded body with everything hidden that ``redact`` names, at any depth."""
    if not redact:
        return body
    patterns = _patterns(redact)
    try:
        args, kwargs, rest = call_in(body)
    except BodyBroken:
        return _hide(body, patterns, "?")
    is_known = task in app.tasks  # else the names of its positional arguments are not known
    positional = zip(args, _parameters(app, task), strict=False)
    shown = (
        [_hide(value, patterns, name) if is_known else HIDDEN for value, name in positional],
        {name: _hide(value, patterns, name) for name, value in kwargs.items()},
    )
    if isinstance(body, Mapping):
        return {**body, "args": shown[0], "kwargs": shown[1]}
    # Callbacks that wait for the task are handed arguments too.
    return [*shown, *(_hide(each, ("args", "kwargs") if redact is True else patterns) for each in rest)]


def hidden_in(redact: Redact, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return named values with everything hidden that ``redact`` names, at any depth."""
    patterns = _patterns(redact)
    return {name: _hide(value, patterns, name) for name, value in values.items()}


def headers_shown(redact: Redact, headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers, or properties, of a message without what ``redact`` hides of the producer's own."""
    if redact is not True:
        return hidden_in(redact, headers)
    return {name: value if name in _PLAIN else HIDDEN for name, value in headers.items()}


def _patterns(redact: Redact) -> tuple[str, ...]:
    return ("*",) if redact is True else tuple(map(str.lower, redact or ()))


def call_in(body: Any) -> tuple[Any, Any, Any]:
    """Return positional arguments, named ones, and the rest, of either version of Celery's protocol.

    Raises:
        BodyBroken: a decoded body holds no arguments.
    """
    match body:
        case [list(args), dict(kwargs), *rest]:
            return args, kwargs, rest
        case {"args": list(args), "kwargs": dict(kwargs)}:
            return args, kwargs, []
    raise BodyBroken("its body holds no arguments")


def _parameters(app: Celery, task: str) -> Iterator[str]:
    """Yield the names of a task's positional parameters; the last one's goes on for ``*args``."""
    found = app.tasks.get(task)
    names: list[str] = []
    if found is not None:
        with suppress(TypeError, ValueError):
            names = list(inspect.signature(found.run).parameters)
    return chain(names, repeat(names[-1] if names else ""))


def _hide(value: Any, patterns: Sequence[str], name: str = "") -> Any:
    if any(fnmatchcase(name.lower(), pattern) for pattern in patterns):
        return HIDDEN
    if isinstance(value, dict):
        return {key: _hide(each, patterns, str(key)) for key, each in value.items()}
    return [_hide(each, patterns) for each in value] if isinstance(value, list) else value


def _brief(value: Any) -> str:
    return _cut(json.dumps(value, ensure_ascii=False), _LONGEST_VALUE)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


# --- fingerprints (NEW-3): a keyed hash of the task and its arguments ------------------------------------

Arguments = tuple[list[Any], Mapping[str, Any]]

_READ = json.JSONDecoder().decode
_IN_ORDER = json.JSONEncoder(sort_keys=True).encode


def original_of(message: Any) -> tuple[bytes, dict[str, Any]]:
    """Return the body as it was received, and the headers that belong to it."""
    received = getattr(message, "received", None)
    headers = dict(message.headers)
    if received is None:
        # This transport unpacked the body before the original could be kept.
        received = message.body
        headers.pop("compression", None)
    return to_bytes(received) if isinstance(received, str) else bytes(received or b""), headers


def fingerprint_of_failure(secret: bytes, task: str, exception: str, calls: Iterable[str]) -> str:
    """Return the hash of equal failures of a task: by exception class and functions, not line numbers."""
    return _hash(secret, task, "\n".join(("raised", exception, *calls)).encode("utf-8", "replace"))


def is_readable(message: Any) -> bool:
    """Whether arguments may be read: in JSON and not compressed. Of others the whole body counts."""
    compressed = "compression" in message.headers and getattr(message, "received", None) is not None
    return bool(message.content_type == "application/json" and not compressed)


def fingerprint_of(message: Any, task: str, secret: bytes, function: Callable[..., Any] | None = None) -> str:
    """Return the fingerprint of a message, of at most 16 characters.

    The key keeps people who can read fingerprints from guessing arguments.

    Args:
        function: of the task's arguments, the user's own; not asked where they are not readable.

    Raises:
        Exception: whatever ``function`` raises, or its result does.
    """
    body, _ = original_of(message)
    arguments = arguments_of(body) if is_readable(message) else None
    if function is None or arguments is None:
        return hash_of(secret, task, body, arguments)
    args, kwargs = arguments
    value = function(*args, **kwargs)
    material = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True, default=repr).encode()
    return _hash(secret, task, material)


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


def hash_of(secret: bytes, task: str, body: bytes | str, arguments: Arguments | None) -> str:
    """Return the fingerprint by all ``arguments``; by the whole ``body`` where they are not readable."""
    try:
        in_order = None if arguments is None else _IN_ORDER(arguments)
    except RecursionError:  # nested as deep as reading allows, and writing does not
        in_order = None
    if in_order is not None:
        return _hash(secret, task, in_order.encode())
    return _hash(secret, task, to_bytes(body) if isinstance(body, str) else body)


def arguments_of(body: bytes | str) -> Arguments | None:
    """Return the arguments of a task's call, from a body in JSON; None if that cannot be read."""
    try:
        args, kwargs, _ = call_in(_READ(body) if isinstance(body, str) else json.loads(body))
    except (BodyBroken, ValueError, TypeError, RecursionError):
        return None
    return args, kwargs


def same_calls(function: Callable[..., Any], arguments: Arguments) -> Iterator[Arguments]:
    """Yield the other ways to write a call: by place or by name, with its defaults or without.

    Nothing where the call does not fit ``function``, or what it gives has no name there.
    """
    args, kwargs = arguments
    try:
        signature = _signature(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        return
    parameters = signature.parameters
    if any(parameters[name].kind in _NAMELESS for name in bound.arguments):
        return
    given = dict(bound.arguments)
    bound.apply_defaults()
    whole = {name: value for name, value in bound.arguments.items() if parameters[name].kind not in _NAMELESS}
    short = {name: value for name, value in whole.items() if not _is_default(value, parameters[name].default)}
    by_place = [name for name in whole if parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    for count in range(len(by_place) + 1):
        places = by_place[:count]
        for named in (given, whole, short):
            rest = {name: value for name, value in named.items() if name not in places}
            yield [whole[name] for name in places], rest


_NAMELESS = {
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
}


def _is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


@lru_cache(maxsize=256)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _hash(secret: bytes, task: str, material: bytes) -> str:
    keyed = _keyed(secret).copy()
    keyed.update(task.encode() + b"\0" + material)
    return keyed.digest()[:8].hex()


@lru_cache(maxsize=8)
def _keyed(secret: bytes) -> hmac.HMAC:
    return hmac.new(secret, digestmod=hashlib.sha256)
