"""A pool process that dies when it has sent a chosen one of the commands by which a run ends."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from redis.connection import Connection

from celery_poison.ledger.writer import Writer
from celery_poison.worker import child

#: The words by which a connection begins.
_GREETINGS = (b"HELLO", b"SETINFO", b"MAINT_NOTIFICATIONS", b"SELECT", b"AUTH")


def die_after(number: int, id: str, *, whole: bool) -> None:
    """SIGKILL this process when it has handed over so many commands to Redis before task ``id`` is over.

    Args:
        number: 0: at once.
        whole: its worker dies with it.
    """
    sent, thread = 0, threading.get_ident()

    def die() -> None:
        os.kill(-os.getpgrp() if whole else os.getpid(), signal.SIGKILL)

    def counting(send: Any) -> Any:
        def counted(self: Any, commands: Any, *args: Any, **options: Any) -> Any:
            nonlocal sent
            result = send(self, commands, *args, **options)
            words = commands if isinstance(commands, bytes) else b"".join(commands)
            is_greeting = any(greeting in words for greeting in _GREETINGS)
            runs = any(id.encode() in run.entry for run in child._running.values())
            if threading.get_ident() == thread and runs and not is_greeting:
                sent += 1
                if sent == number:
                    die()
            return result

        return counted

    if number == 0:
        die()
    for kind, name in ((Connection, "send_packed_command"), (Writer, "send")):
        setattr(kind, name, counting(getattr(kind, name)))
