"""A call's arguments as one short line, without what its producer or ``poison_redact`` hides.

They are read from bodies in JSON, and from nothing else. Positional arguments have the names of the task's
parameters, so that who hides must know the task: a worker does. A producer hides by ``argsrepr`` and
``kwargsrepr``: where these are not what Celery would have made of the body, they are shown instead.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import chain, repeat
from typing import Any

from celery import Celery
from celery.utils.saferepr import saferepr

from celery_poison.model import StoredMessage
from celery_poison.quarantine.body import BodyBroken, json_of

#: Bytes of a body that is read for this; characters of the line, and of one value in it.
_READABLE, _LENGTH, _VALUE = 64 * 1024, 200, 80
HIDDEN = "(hidden)"
#: Characters of what Celery's producers send along of either kind of arguments.
_SENT = 1024

#: ``poison_redact``: True hides everything.
Redact = Sequence[str] | bool


def arguments(app: Celery, redact: Redact, task: str, stored: StoredMessage) -> str:
    """Return e.g. ``42, "a.png", key="(hidden)"``; the empty string where the body is not small JSON."""
    try:
        body = json_of(stored, _READABLE)
        shown = redacted(app, redact, task, body)
        line = _said_instead(stored.headers, body)
        if line and shown != body:
            line = HIDDEN  # nobody knows whether the producer hides the same
        # Half a surrogate pair is good JSON, and nothing that Redis takes.
        if not line:
            args, kwargs, _ = _call(shown)
            told = [*map(_brief, args), *(f"{name}={_brief(value)}" for name, value in kwargs.items())]
            line = ", ".join(told) or "no arguments"
        return _cut(line, _LENGTH).encode("utf-8", "replace").decode()
    except Exception:  # nothing that somebody sends may end in a failure that is ours
        return ""


def _said_instead(headers: Mapping[str, Any], body: Any) -> str:
    """Return what the producer wants people to see instead of the arguments; empty: it does not say."""
    said = [headers.get("argsrepr"), headers.get("kwargsrepr")]
    real = [saferepr(each) for each in _call(body)[:2]]
    pairs = zip(said, real, strict=True)
    if all(text is None or _bracketed(str(text)) == _bracketed(own) for text, own in pairs):
        return ""
    return " ".join(str(text) for text in said if text not in (None, "()", "[]", "{}"))


def shown_of_copy(said: Any, old: Any, new: Any) -> Any:
    """Return ``argsrepr`` or ``kwargsrepr`` of a changed copy: hidden where the producer hid the original's.

    Args:
        said: the original's; None where it has none.
        old, new: the arguments of the original and of its copy.
    """
    if said is None or repr(old) == repr(new):
        return said
    honest = {_bracketed(saferepr(old)), _bracketed(saferepr(old, _SENT))}
    return saferepr(new, _SENT) if _bracketed(str(said)) in honest else HIDDEN


def _bracketed(text: str) -> str:
    # JSON knows no tuples.
    return text.replace("(", "[").replace(",)", "]").replace(")", "]")


def redacted(app: Celery, redact: Redact, task: str, body: Any) -> Any:
    """Return a decoded body with everything hidden that ``redact`` names, at any depth."""
    if not redact:
        return body
    patterns = ("*",) if redact is True else tuple(map(str.lower, redact))
    try:
        args, kwargs, rest = _call(body)
    except BodyBroken:
        return _hide(body, patterns, "?")
    positional = zip(args, _parameters(app, task), strict=False)
    shown = (
        [_hide(value, patterns, name) for value, name in positional],
        {name: _hide(value, patterns, name) for name, value in kwargs.items()},
    )
    if isinstance(body, Mapping):
        return {**body, "args": shown[0], "kwargs": shown[1]}
    # Who waits for the task, and is handed arguments too.
    return [*shown, *(_hide(each, ("args", "kwargs") if redact is True else patterns) for each in rest)]


def _call(body: Any) -> tuple[Any, Any, Any]:
    """Return positional arguments, named ones, and the rest, of either version of Celery's protocol."""
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
    return _cut(json.dumps(value, ensure_ascii=False), _VALUE)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
