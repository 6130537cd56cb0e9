"""Fingerprints in a worker: a function of a user that raises or hangs must hurt nobody (NEW-3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from celery_poison.errors import ConfigurationError
from celery_poison.quarantine.fingerprint import fingerprint_of, is_readable
from celery_poison.worker import native

#: Seconds that a user's function may take; a function that needs longer is not asked again.
PATIENCE = 1.0


class Fingerprints:
    """Computes the fingerprints of one worker.

    Where a function fails, all arguments count: that is the same in every worker, and never takes one
    message for another.
    """

    def __init__(self, complain: Callable[[Exception], None]) -> None:
        self._complain = complain
        self._hung: set[str] = set()

    def asks(self, message: Any, task: str, function: Callable[..., Any] | None) -> bool:
        """Whether the user's function has a say in the fingerprint of this message."""
        return function is not None and task not in self._hung and is_readable(message)

    def of(self, message: Any, task: str, secret: bytes, function: Callable[..., Any] | None) -> str:
        """Return the fingerprint of a message; raises nothing that ``function`` does."""
        if self.asks(message, task, function):
            try:
                return native.call(partial(fingerprint_of, message, task, secret, function), PATIENCE)
            except TimeoutError:
                self._hung.add(task)
                self._complain(_broken(task, f"took longer than {PATIENCE:g} s and is not asked again"))
            except Exception as error:
                self._complain(_broken(task, f"failed: {error!r}"))
        return fingerprint_of(message, task, secret)


def _broken(task: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"all arguments count, since the fingerprint function of {task} {what}")
