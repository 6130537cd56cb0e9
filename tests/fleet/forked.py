"""A process that dies, or stops, at a chosen one of the commands that it sends to Redis."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress

from redis import ResponseError, connection

#: Exit statuses of a process that ended, died at its command, or met an error of its own.
ENDED, DIED, FAILED = 0, 9, 1

#: The words by which a connection begins; dying at one of them is dying at the command it was opened for.
_GREETINGS = (b"HELLO", b"SETINFO", b"SELECT", b"AUTH")

Deed = Callable[[], None]


def die() -> None:
    os._exit(DIED)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class Forked:
    """A fork of this process that does ``work``; ``deed`` comes before its ``at``-th command, from 1.

    Args:
        inside: commands that are sent together count one by one; those before have reached Redis.
    """

    def __init__(self, work: Deed, at: int = 0, deed: Deed = die, *, inside: bool = False) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            try:
                if at:
                    _before_command(at, deed, inside)
                work()
                os._exit(ENDED)
            except BaseException:
                traceback.print_exc()
                os._exit(FAILED)

    def wait(self) -> bool:
        """Wait until it ends or stops; whether it stopped."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self.status = os.waitstatus_to_exitcode(status)
        assert self.status in (ENDED, DIED), f"exit status {self.status}"
        return False

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def do(work: Deed) -> None:
    """Do ``work`` in a fork and wait for its end."""
    assert not Forked(work).wait(), "it was stopped"


def _before_command(number: int, deed: Deed, inside: bool) -> None:
    # Ledger and broker are different connections, pools and threads: this is the one way out of them all.
    send = connection.Connection.send_packed_command
    sent = 0

    def counting(self: connection.Connection, command: object, check_health: bool = True) -> object:
        nonlocal sent
        words = command if isinstance(command, bytes) else b"".join(command)  # type: ignore[call-overload]
        if not any(greeting in words for greeting in _GREETINGS):
            together = _commands(words) if inside else [words]
            if sent < number <= sent + len(together):
                if before := together[: number - sent - 1]:
                    send(self, before, check_health=check_health)
                    for _ in before:
                        with suppress(ResponseError):
                            self.read_response()  # type: ignore[no-untyped-call]
                deed()
            sent += len(together)
        return send(self, command, check_health=check_health)

    connection.Connection.send_packed_command = counting  # type: ignore[method-assign]


def _commands(packed: bytes) -> list[bytes]:
    """Return the commands of a pipeline, apart."""
    found, rest = [], packed
    while rest:
        head = rest.split(b"\r\n", 1)[0]
        end = len(head) + 2
        for _ in range(int(head[1:])):
            size = rest[end : rest.index(b"\r\n", end)]
            end += len(size) + 2 + int(size[1:]) + 2
        found.append(rest[:end])
        rest = rest[end:]
    return found
