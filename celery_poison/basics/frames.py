"""Calls that Python's faulthandler has written down, as lines that people read: ``function (file:line)``."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Sequence
from typing import Final

#: Frames that are kept of a stack, and characters of each name.
FRAMES: Final = 20
_LENGTH = 200

FRAME: Final = re.compile(r'^  File "(.*)", line (\d+|\?+) in (.*)$', re.MULTILINE)

#: Clients of servers.
_CLIENTS = (
    *("kombu", "amqp", "redis", "valkey", "vine", "botocore", "urllib3", "pymongo", "sqlalchemy"),
    *("psycopg", "psycopg2", "pymysql"),
)
_IN_CLIENT = tuple(f"/{name}/" for name in _CLIENTS)
_STDLIB = sysconfig.get_paths()["stdlib"] + "/"


def lines_of(frames: Sequence[tuple[str, str, str]]) -> tuple[str, ...]:
    """Return a few lines of file, line and function of each call."""
    return tuple(f"{name[:_LENGTH]} ({path[-_LENGTH:]}:{line})" for path, line, name in frames[:FRAMES])


def frames_in(text: str) -> tuple[str, ...]:
    """Return the calls of the first stack of a text, innermost first."""
    first, _, _ = text.strip().partition("\n\n")
    return lines_of(FRAME.findall(first))


def is_waiting(stack: Sequence[str]) -> bool:
    """Whether a thread waits for a server: innermost, outside of the standard library, is a client of one.

    It goes on as soon as that server does, or its network.
    """
    for frame in stack:
        path = frame.rpartition(" (")[2]
        if path.startswith("<") or (path.startswith(_STDLIB) and "/site-packages/" not in path):
            continue
        return any(client in path for client in _IN_CLIENT)
    return False
