"""Lines of the log: one each, whatever a publisher has put into a name, and our name in it once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

from celery_poison.basics.text import clean

#: Where a format, of any style, names the logger.
_NAME = re.compile(r"%\(name\)|\{name\b|\$\{?name\b")


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


def name_once(log: logging.Logger) -> None:
    """Leave out the name with which a line begins where each handler's format names the logger anyway.

    Celery's own formats do not.
    """
    prefix = f"{log.name}: "

    def without_prefix(record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and record.msg.startswith(prefix) and _is_named(log):
            record.msg = record.msg.removeprefix(prefix)
        return True

    log.addFilter(without_prefix)


def _is_named(log: logging.Logger) -> bool:
    formatters = [handler.formatter for handler in _handlers(log)]
    formats = [getattr(each, "_fmt", None) or "" for each in formatters]
    return bool(formats) and all(map(_NAME.search, formats))


def _handlers(log: logging.Logger) -> Iterator[logging.Handler]:
    current: logging.Logger | None = log
    while current is not None:
        yield from (each for each in current.handlers if not isinstance(each, logging.NullHandler))
        current = current.parent if current.propagate else None
