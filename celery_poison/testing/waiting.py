"""Wait for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Seconds to wait for what must come, before giving up: enough for a machine that has much else to do.
PATIENCE = 120.0


class WaitTimeout(AssertionError):
    """What was waited for did not happen. An AssertionError, so that a test fails rather than errs."""


def wait_until(
    predicate: Callable[[], T],
    timeout: float = PATIENCE,
    what: str | Callable[[], str] = "",
    interval: float = 0.02,
) -> T:
    """Call `predicate` until it returns something true, and return that.

    `what` says in the error what was waited for; give a function where the sentence should tell how
    things stand at the end. Raises WaitTimeout after `timeout` seconds. The pauses grow from
    `interval` to ten times that, so that a long wait does not keep a processor busy.
    """
    deadline = time.monotonic() + timeout
    pause = interval
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise WaitTimeout(f"not within {timeout:g} s: {_told(what, predicate)} (last seen: {value!r})")
        time.sleep(pause)
        pause = min(pause * 1.3, interval * 10)


def _told(what: str | Callable[[], str], predicate: Callable[[], object]) -> str:
    if callable(what):
        return what()
    return what or getattr(predicate, "__qualname__", repr(predicate))
