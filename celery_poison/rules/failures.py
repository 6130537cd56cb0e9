"""Ordinary failures: what an attempt raised, as it is kept and carried over retries (NEW-10).

Nothing here raises for what a user's exception does, or for what a publisher has put into a header.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple

from celery_poison import causes
from celery_poison.causes import Evidence, is_users
from celery_poison.model import History

#: Characters of the last attempt's message and traceback that are kept; frames of its stack.
MESSAGE, TRACEBACK, FRAMES = 1000, 16_000, 20
#: Earlier attempts that a retry carries at most, characters of each word of them, and of the whole header.
ATTEMPTS, WORD, HEADER = 20, 200, 8000


class Failure(NamedTuple):
    """The exception of one attempt.

    Attributes:
        exception: its class, with its module unless it is built in.
        stack: innermost call first, as ``function (file:line)``; no arguments.
        calls: the user's functions and their files without line numbers, innermost first: equal failures
            have equal ones.
        traceback: as Celery writes it; filled in where it is stored.
    """

    exception: str
    message: str
    stack: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    traceback: str = ""

    @property
    def evidence(self) -> Evidence:
        """What the ledger and the journal keep; never the message, which may quote arguments."""
        return Evidence(exception=self.exception, stack=self.stack)


class PastAttempt(NamedTuple):
    """An earlier attempt, in short.

    Attributes:
        source: the user's line of code, as ``function (file:line)``.
    """

    exception: str
    message: str
    source: str


class KeptFailure(NamedTuple):
    """The part of a failure that quarantine keeps.

    Attributes:
        message, traceback: of the last attempt.
        earlier: oldest first; of very many the newest.
    """

    exception: str = ""
    message: str = ""
    traceback: str = ""
    earlier: tuple[PastAttempt, ...] = ()

    @classmethod
    def of(cls, failure: Failure, header: Any) -> KeptFailure:
        """Return what is kept of ``failure``; ``header`` has the earlier attempts."""
        trace = _cut(failure.traceback[-TRACEBACK:], TRACEBACK)
        return cls(failure.exception, failure.message, trace, tuple(earlier_of(header)))

    def encode(self) -> str:
        return json.dumps(self)

    @classmethod
    def decode(cls, raw: bytes | None) -> KeptFailure | None:
        """Return what is kept; None where nothing is, or it is not to be understood."""
        try:
            exception, message, trace, earlier = json.loads(raw or b"null")
            return cls(str(exception), str(message), str(trace), tuple(_attempts(earlier)))
        except (ValueError, TypeError, LookupError, RecursionError):  # of a slice of a dict: by its version
            return None

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "earlier": [attempt._asdict() for attempt in self.earlier]}


def name_of(kind: type[BaseException] | str) -> str:
    """Return the dotted name of an exception class, without a module if it is built in."""
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return name.removeprefix("builtins.")


def kinds_of(error: BaseException) -> list[str]:
    """Return the names of the class of ``error`` and of those that it derives from, nearest first."""
    return [name_of(kind) for kind in type(error).__mro__ if kind is not object]


def failure_of(error: BaseException) -> Failure:
    """Return the failure of an attempt."""
    frames = list(traceback.walk_tb(error.__traceback__))
    codes = [(frame.f_code, line) for frame, line in reversed(frames)]
    stack = [_cut(f"{code.co_name} ({code.co_filename}:{line})", 2 * WORD) for code, line in codes]
    own = [number for number, frame in enumerate(stack) if is_users(frame)] or range(len(stack))
    shown = stack[:FRAMES] if not own or own[0] < FRAMES else [*stack[: FRAMES - 1], stack[own[0]]]
    calls = (f"{'/'.join(codes[n][0].co_filename.split('/')[-2:])}:{codes[n][0].co_name}" for n in own)
    return Failure(
        _cut(name_of(type(error)), WORD),
        _cut(_text(error), MESSAGE),
        tuple(shown),
        # A recursion fails at one depth or another.
        tuple(_cut(call, 2 * WORD) for call, _ in groupby(calls))[:FRAMES],
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "its message cannot be shown"


def _cut(text: str, length: int) -> str:
    # Redis and brokers take no text that is not Unicode; an exception may quote some.
    return text[:length].encode("utf-8", "replace").decode()


# --- carried over retries ------------------------------------------------------------------------------


def earlier_of(header: Any) -> list[PastAttempt]:
    """Return the failures of earlier attempts, the oldest first, by the header of a retry."""
    if not isinstance(header, str) or len(header) > 2 * HEADER:
        return []
    with suppress(ValueError, TypeError, RecursionError):
        return list(_attempts(json.loads(header)))
    return []


def _attempts(rows: Any) -> Iterable[PastAttempt]:
    return [PastAttempt(*(_cut(str(word), WORD) for word in row)) for row in rows[-ATTEMPTS:]]


def carried(header: Any, exception: str, message: str, source: str) -> str:
    """Return the header of the next message: the attempts in ``header``, and one more."""
    newest = PastAttempt(_cut(exception, WORD), _cut(message, WORD), _cut(source, WORD))
    attempts = [*earlier_of(header), newest][-ATTEMPTS:]
    while len(attempts) > 1 and len(json.dumps(attempts)) > HEADER:
        del attempts[0]
    return json.dumps(attempts)


def carried_after(header: Any, failure: Failure) -> str:
    return carried(header, failure.exception, failure.message, failure.evidence.source)


def carried_by_release(headers: Mapping[str, Any], name: str, kept: KeptFailure | None, source: str) -> Any:
    """Return the headers of a released message: its next run can read what its last one raised."""
    if kept is None:
        return headers
    return {**headers, name: carried(headers.get(name), kept.exception, kept.message, source)}


# --- read by the next attempt --------------------------------------------------------------------------


def last_trouble(history: History, header: Any) -> tuple[str, str]:
    """Return the cause that the last run of this task id died or failed of, and its evidence, encoded."""
    earlier = earlier_of(header)
    released = history.probation and history.cause != causes.FAILURE
    if not earlier or history.strikes or released:
        return history.cause, history.evidence
    newest = earlier[-1]
    stack = (newest.source,) if newest.source else ()
    return causes.FAILURE, Evidence(exception=newest.exception, stack=stack).encode()
