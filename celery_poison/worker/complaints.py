"""What went wrong in the plugin itself: a task must never notice."""

from __future__ import annotations

from logging import ERROR, WARNING

from celery.utils.log import get_logger

from celery_poison.errors import ConfigurationError, LedgerUnavailable

logger = get_logger("celery_poison")


class Complaints:
    """Takes the errors of one worker's plugin: each is counted, each kind of it is logged once.

    Attributes:
        count: how many there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[str] = set()

    def __call__(self, error: Exception) -> None:
        self.count += 1
        kind = f"{type(error).__name__}: {str(error).split(':')[0]}"
        if kind not in self._logged:
            self._logged.add(kind)
            known = isinstance(error, (LedgerUnavailable, ConfigurationError))
            sentence = "celery_poison: %s; tasks go on (logged once, counted in status)"
            logger.log(WARNING if known else ERROR, sentence, error, exc_info=None if known else error)
