"""What the value of a setting may be: each check returns None, or what to use instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery_poison.rules.destinations import is_cause

#: How the URL of a ledger may begin; Valkey is spoken to as Redis is.
REDIS_SCHEMES = (
    *("redis://", "rediss://", "unix://", "redis+socket://", "sentinel://"),
    *("valkey://", "valkeys://"),
)

Check = Callable[[Any], str | None]


def one_of(*allowed: str) -> Check:
    return lambda v: None if v in allowed else f"use one of {', '.join(map(repr, allowed))}"


def number(minimum: float, *, integer: bool = False, optional: bool = False) -> Check:
    kind = "a whole number" if integer else "a number"
    wanted = f"use {kind} of at least {minimum}" + (" or None" if optional else "")

    def check(value: Any) -> str | None:
        number = isinstance(value, int) or (isinstance(value, float) and not integer)
        good = optional if value is None else number and not isinstance(value, bool) and value >= minimum
        return None if good else wanted

    return check


def retry_timeout(value: Any) -> str | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and (value >= 0 or value == -1)
    return None if good else "use seconds, 0 for at once or -1 for never"


def flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "use True or False"


def name(value: Any) -> str | None:
    good = isinstance(value, str) and value and not set(value) & set("{} \t\r\n")
    return None if good else "use a name without blanks and braces"


def url(value: Any) -> str | None:
    good = value is None or (isinstance(value, str) and value.startswith(REDIS_SCHEMES))
    return None if good else f"use a URL that begins with one of {', '.join(REDIS_SCHEMES)}"


def destination(value: Any) -> str | None:
    if isinstance(value, Mapping) and (wrong := [key for key in value if not is_cause(key)]):
        return f"{wrong[0]!r} is no cause: use the words of docs/journal.md, or '*' for every other one"
    named = value.values() if isinstance(value, Mapping) else [value]
    good = all(each is None or name(each) is None for each in named)
    return None if good else "use 'system', a queue name, None, or a mapping of causes to one of these"


def directory(value: Any) -> str | None:
    good = value is None or (isinstance(value, str) and value.startswith("/"))
    return None if good else "use the path of a directory, which begins with /, or None"


def exceptions(value: Any) -> str | None:
    good = isinstance(value, (tuple, list, set, frozenset)) and all(map(_is_exception, value))
    return None if good else "use a tuple of exception classes, or of their dotted names as text"


def _is_exception(value: Any) -> bool:
    if isinstance(value, str):
        return all(part.isidentifier() for part in value.split("."))
    return isinstance(value, type) and issubclass(value, Exception)


def function(value: Any) -> str | None:
    return None if value is None or callable(value) else "use a function of the task's arguments, or None"


def share(value: Any) -> str | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    good = value is None or (number and 0 < value <= 1)
    return None if good else "use a number above 0 and up to 1, or None for never"


def short_name(value: Any) -> str | None:
    good = isinstance(value, str) and len(value) <= 100 and value.isprintable()
    return None if good else "use your own name as text of at most 100 characters, or ''"


def redact(value: Any) -> str | None:
    names = isinstance(value, (list, tuple)) and all(isinstance(name, str) and name for name in value)
    return None if names or isinstance(value, bool) else "use a list of names and patterns, or True for all"
