"""Settings of notifications."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from celery_poison.settings import Section, setting, whole

#: Of ``poison_notify``: a URL, an address of Apprise's, ``module:function``, ``event``; or a command's words.
Receiver = str | Sequence[str]
_RECEIVER = re.compile(r"event|[a-z][a-z0-9+.-]*://[!-~]+|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
#: What is typed for http and https by mistake.
_NEARLY_WEB = re.compile(r"h?t+ps*s?|ht+p+s*|htt?s?|hhttps?")


def _check_receivers(value: Any) -> str | None:
    known = value is None or isinstance(value, (str, list, tuple))
    if known and all(map(_is_receiver, receivers_of(value))):
        return None
    return (
        "use a list of 'https://...', 'slack://...' (Apprise), 'module:function', 'event', or a command as a"
        " list of its words"
    )


def _is_receiver(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(word, str) and word for word in value)
    if not isinstance(value, str) or _RECEIVER.fullmatch(value) is None:
        return False
    scheme, has_scheme, _ = value.partition("://")
    try:
        host = urlsplit(value).hostname
    except ValueError:
        return False
    # A slip in the commonest of all would be an address of Apprise's.
    return not has_scheme or (
        bool(host) if scheme in ("http", "https") else not _NEARLY_WEB.fullmatch(scheme)
    )


def receivers_of(value: Receiver | Sequence[Receiver] | None) -> Sequence[Receiver]:
    """Return the receivers that ``poison_notify`` names, as a list."""
    return [value] if isinstance(value, str) else [*(value or ())]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings(Section):
    """Of notifications."""

    notify: Receiver | Sequence[Receiver] | None = setting(  # noqa: RUF009 - a field, like the others
        None,
        _check_receivers,
        "Receivers of a notification for each new group in quarantine, and for a closed fleet gate: a list"
        " of URLs, addresses of Apprise's, commands, 'module:function' and 'event'.",
        secret=True,
    )
    notify_per_minute: int = whole(
        10, 1, "At most so many for each receiver; more are summed up in one.", "notifications per minute"
    )


SETTINGS = NotifySettings
