"""Words for people: what was stored is made harmless, moments and spans are short, commands whole."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache
from importlib import metadata

#: Characters of a task id that tell it apart: of one that is a UUID, and of one that a program made up.
_SHORT, _OWN = 8, 20
#: Whether moments are shown whole and in UTC (``--utc``), not in local time.
utc: ContextVar[bool] = ContextVar("celery_poison_utc", default=False)


@cache  # a millisecond each time, and every process that starts asks forty times
def version(package: str = "celery-poison") -> str:
    """Return the installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # ours may be run from a source tree
        return "(not installed)"


def ordinal(number: int) -> str:
    """Return *first*, *second*, … in words as far as they are short, else ``11th``."""
    words = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    if number <= len(words):
        return words[number - 1]
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def clean(text: object) -> str:
    """Return one line of printable text; control characters become visible escapes."""
    line = str(text)
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def decoded(stored: bytes) -> str:
    """Return stored text; what is not Unicode in it is replaced."""
    return stored.decode("utf-8", "replace")


def when(seconds: float | None) -> str:
    """Return a moment with its zone, local unless ``utc`` is set, e.g. ``2026-03-01 14:05:09 CET``."""
    if not seconds:
        return "-"
    if utc.get():
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))


def clock(seconds: float | None) -> str:
    """Return a moment briefly, in local time: ``14:05:09`` if that was today, else ``Mar 01 14:05``.

    Where ``utc`` is set: whole, as :func:`when` does.
    """
    if not seconds or utc.get():
        return when(seconds)
    moment, today = time.localtime(seconds), time.localtime()
    same_day = moment[:3] == today[:3]
    return time.strftime("%H:%M:%S" if same_day else "%b %d %H:%M", moment)


def near_paths(text: str) -> str:
    """Return text in which paths below the working directory are relative to it, as in stacks."""
    try:
        here = os.getcwd()
    except OSError:  # it was deleted meanwhile
        return text
    if here == os.sep:
        return text
    return text.replace(f"({here}{os.sep}", "(").replace(f'"{here}{os.sep}', '"')


def between(after: float, by: float) -> str:
    """Return when something happened that was noticed later: ``at`` or ``between`` two moments."""
    if by - after < 2:
        return f"at {when(by)}"
    first, last = when(after), when(by)
    same_day = first[:10] == last[:10] and first[19:] == last[19:]
    return f"between {first[:19] if same_day else first} and {last[11:] if same_day else last}"


def duration(seconds: float) -> str:
    """Return a span of time in its largest unit, e.g. ``12s``, ``5m``, ``3h``, ``2d``."""
    seconds = max(0.0, seconds)
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds / unit:.0f}{name}"
    return f"{seconds:.0f}s"


def span(seconds: float) -> str:
    """Return the same in words, e.g. ``12 s``, ``5 min``, ``3 h``, ``2 d``."""
    brief = duration(seconds)
    return f"{brief[:-1]} {'min' if brief[-1] == 'm' else brief[-1]}"


def span_in_two(seconds: float) -> str:
    """Return a span in its two largest units, e.g. ``3 h 12 min``; below ten seconds as ``4.2 s``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    left, words = round(seconds), list[str]()
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        number, left = divmod(left, unit)
        if words or number:
            words.append(f"{number} {name}")
    return " ".join(word for word in words[:2] if not word.startswith("0 "))


def size(number: int) -> str:
    """Return a number of bytes for people, e.g. ``417.0 kB``."""
    for unit, name in ((1 << 20, "MB"), (1 << 10, "kB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number} bytes"


def count_of(number: int, noun: str) -> str:
    """Return number and noun, e.g. ``1 message``, ``2 processes``."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


def some_of(names: Iterable[str], limit: int = 10) -> str:
    """Return names in a row, sorted, of very many the first ones."""
    return first_of(sorted(names), limit)


def first_of(names: Sequence[str], limit: int) -> str:
    """Return names in a row as they come, of very many the first ones."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def short(id: str, others: Iterable[str] = ()) -> str:
    """Return as much of an id as tells it apart from ``others``; every command takes it for the whole."""
    try:
        uuid.UUID(id)
        length = _SHORT
    except ValueError:
        length = _OWN
    rivals = [other for other in others if other != id and other.startswith(id[:length])]
    while any(other.startswith(id[:length]) for other in rivals) and length < len(id):
        length += 1
    return id[:length]


def literal(text: str) -> str:
    """Return a text as part of a log line's template, by which Sentry and others group lines."""
    return clean(text).replace("%", "%%")


def argument(text: str) -> str:
    """Return an id as the last word of a command: neither the shell nor the command reads more in it.

    Whatever a publisher has put into a message, a person will copy the command into a shell.
    """
    return f"{'-- ' if text.startswith('-') else ''}{shlex.quote(text)}"


def command(words: str) -> str:
    """Return a ``celery`` command that can be typed as it stands, for the app that this process was given."""
    return f"celery -A {shlex.quote(next(apps_given(), 'proj'))} {words}"


def apps_given() -> Iterator[str]:
    """Yield the app that this process was given, as ``celery -A`` takes it."""
    for word, following in zip(sys.argv, [*sys.argv[1:], ""], strict=True):
        if word in ("-A", "--app"):
            yield following
        elif word.startswith("--app="):
            yield word[6:]
        elif word.startswith("-A"):
            yield word[2:].removeprefix("=")
    if "APP" in os.environ:
        yield os.environ["APP"]


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``": did you mean X?"`` for the nearest valid name; empty if none is near."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f": did you mean {near[0]}?" if near else ""


def did_you_mean(name: str, names: Collection[str]) -> str:
    """Return the same, or the list of all names."""
    return nearest(name, names) or f": valid names are {', '.join(sorted(names))}"


_SECRETS = re.compile(r"(//|;(?![^;?]*//))[^;?]*@|\?[^;]*")


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query, which may hold either."""
    return _SECRETS.sub(lambda found: found[1] or "", url)
