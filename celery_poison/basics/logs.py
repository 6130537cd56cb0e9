"""Lines of the log: one each, whatever a publisher has put into a name."""

from __future__ import annotations

import logging
from typing import Any

from celery_poison.basics.text import clean


def keep_to_one_line(log: logging.Logger) -> None:
    """Make control characters in what a line quotes visible, so that no name can forge another line."""
    log.addFilter(_harmless_line)


def _harmless_line(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(map(_harmless, record.args))
    return True


def _harmless(value: Any) -> Any:
    if not isinstance(value, (str, BaseException)):
        return value
    text = str(value)
    return value if text.isprintable() else clean(text)
