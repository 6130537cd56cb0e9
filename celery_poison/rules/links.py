"""Links outward (``poison_links``), as to logs or Sentry: URLs with fields, filled from a message's record.

A publisher chooses much of a record. So its values stand behind the host alone, and are quoted whole: they
lead to no other host and end no parameter. Nothing of a template is evaluated.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any, Final
from urllib.parse import quote

from celery_poison.model import MessageRecord

#: Seconds that a link spans before a message was first seen, and after the last that is known of it.
_AROUND = 60
#: Characters of a value: a search for a part of a longer one would find something else.
_LONGEST = 200
_HOST = re.compile(r"https?://([\w.-]+|\[[\da-f:.]+\])(:\d+)?(?=[/?#]|$)", re.ASCII)
_URL = re.compile(r"[!-~]+")


def _node(record: MessageRecord) -> str:
    return record.worker.partition("/")[0]


def _milliseconds(seconds: float | None, later: float) -> str:
    return "" if seconds is None else f"{(seconds + later) * 1000:.0f}"


def _iso(seconds: float | None, later: float) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds + later))


#: What a template may name, and its value.
FIELDS: Final[Mapping[str, Callable[[MessageRecord], str]]] = {
    "task_id": lambda record: record.id,
    "task": lambda record: record.task,
    "queue": lambda record: record.queue,
    "cause": lambda record: record.cause,
    "worker": _node,
    "host": lambda record: _node(record).partition("@")[2],
    "from": lambda record: _milliseconds(record.first_seen, -_AROUND),
    "to": lambda record: _milliseconds(record.last_seen, _AROUND),
    "from_iso": lambda record: _iso(record.first_seen, -_AROUND),
    "to_iso": lambda record: _iso(record.last_seen, _AROUND),
}


def links_of(templates: Mapping[str, str] | None, record: MessageRecord) -> dict[str, str]:
    """Return name -> URL for a message; a link that lacks a value is left out."""
    filled = {name: _fill(template, record) for name, template in (templates or {}).items()}
    return {name: url for name, url in filled.items() if url}


def _fill(template: str, record: MessageRecord) -> str:
    url = ""
    for text, field, *_ in Formatter().parse(template):
        url += text
        if field is not None:
            value = FIELDS[field](record)
            # A path of dots alone would lead to another page.
            if not value.strip(".") or len(value) > _LONGEST:
                return ""
            url += quote(value, safe="", errors="replace")
    return url


def check_links(value: Any) -> str | None:
    """Return why these are no links, and what to use; None: they are."""
    if value is not None and not isinstance(value, Mapping):
        return "use a mapping of names to URLs, as {'Logs': 'https://logs.example.com/?q={task_id}'}"
    for name, template in (value or {}).items():
        if not (isinstance(name, str) and name.strip() and name.isprintable() and len(name) <= 40):
            return f"use a short text as the name of a link, not {name!r}"
        if complaint := _complaint(template):
            return f"in {name!r} {complaint}"
    return None


def _complaint(template: Any) -> str:
    if not isinstance(template, str) or not _URL.fullmatch(template):
        return "use the text of a URL, in ASCII and without blanks"
    try:
        parts = [*Formatter().parse(template)]
    except ValueError:
        return "a brace stands alone: use {{ and }} for braces that name no field"
    head = template if all(field is None for _, field, *_ in parts) else template[: template.index("{")]
    for _, field, spec, conversion in parts:
        if field is not None and (field not in FIELDS or spec or conversion):
            return f"there is no field {{{field}}}: use {', '.join(FIELDS)}, in braces and without more"
    found = _HOST.match(head)
    if found is None or (head != template and found.end() == len(head)):
        return "use http:// or https:// and a host, without user, password or field in it"
    return ""
