"""The names under which one worker lives, and what its processes know about its lease without asking Redis.

The main process writes it at every heartbeat into memory that it shares with its pool processes. A
process that was stopped for a while, or that a message reached late, finds the lease doubtful, and asks
before it does anything that only the owner of a message may do (EMS-8). What it has not begun when the broker
connection is lost, it does not begin (NEW-9).
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from uuid import uuid4

from celery_poison.basics.forking import no_fork
from celery_poison.ledger.connection import ANSWER_TIMEOUT
from celery_poison.ledger.keys import Keys
from celery_poison.ledger.writer import Writer, command
from celery_poison.settings import Settings
from celery_poison.worker.threads import start_real_thread

_LAYOUT = struct.Struct("=dqqdqq")

#: Seconds after which a heartbeat without an answer says that the ledger is slow, and after which it says
#: nothing: it is given up, or this process stood still.
SLOW, GIVEN_UP = 0.5, 2 * ANSWER_TIMEOUT

#: Runs on while a machine sleeps, and is the same for all its processes.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    return time.clock_gettime(_CLOCK)


class Incarnation:
    """A worker as others know it at this moment.

    Args:
        node: its node name.

    Attributes:
        boot_id: what tells it from every other worker of that name; part of its tokens.
        born_as: its first boot id.
        rejoins: how often it rejoined.
        pid: of its main process.
        issued: number of the last token.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.pid = os.getpid()
        self.rejoins = 0
        self.boot_id = self.born_as = uuid4().hex[:16]
        self.issued = 0

    @property
    def worker(self) -> str:
        """Its name in the ledger."""
        return f"{self.node}/{self.boot_id}"

    @property
    def first_worker(self) -> str:
        """The name that it was born with, and that its connections keep."""
        return f"{self.node}/{self.born_as}"

    def next_token(self) -> str:
        """Return the fencing token of a new start (on the event loop)."""
        self.issued += 1
        return f"{self.boot_id}.{self.issued}"

    def rejoin(self) -> None:
        self.rejoins += 1
        self.boot_id = f"{self.born_as}r{self.rejoins}"


class Lease:
    """The lease of one worker.

    Args:
        activation: seconds of silence after which others take the worker for dead.
        fd: descriptor of the memory that another process keeps it in; None: kept here.

    Attributes:
        fd: for processes that do not inherit the memory; -1 where there is none.
    """

    def __init__(self, activation: float, fd: int | None = None) -> None:
        # Others count from the moment when Redis heard the heartbeat; here it is doubted a little earlier.
        self._trust = activation - min(1.0, activation / 10)
        self.fd = -1 if fd is None else fd
        if fd is None and hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("poison-lease")
            os.ftruncate(self.fd, _LAYOUT.size)
        self._memory = mmap.mmap(self.fd, _LAYOUT.size)
        self._rejoins = self._void = self._returns = self._refusals = 0
        self._asked_at = 0.0
        if fd is None:
            self.confirmed(clock())

    def close(self) -> None:
        """Give the memory back; the lease may not be asked any more."""
        self._memory.close()
        if self.fd >= 0:
            os.close(self.fd)

    def asked(self) -> None:
        """A heartbeat is sent, and not answered yet."""
        self._asked_at = clock()
        confirmed_at, *_ = _LAYOUT.unpack_from(self._memory, 0)
        self._write(confirmed_at)

    def confirmed(self, asked_at: float) -> None:
        """Redis heard a heartbeat that was sent at ``asked_at`` of :func:`clock`."""
        self._asked_at = 0.0
        if _LAYOUT.unpack_from(self._memory, 0)[0] == float("inf"):
            self._returns += 1
        self._write(asked_at)

    def unknown(self) -> None:
        """Redis is away: that is unknown, and need not be asked."""
        self._asked_at = 0.0
        self._write(float("inf"))

    def refused(self) -> None:
        """Redis has refused something, unknown whose: every process reports again what it runs."""
        self._refusals += 1
        confirmed_at, *_ = _LAYOUT.unpack_from(self._memory, 0)
        self._write(confirmed_at)

    def rejoined(self) -> None:
        """The worker was taken for dead: every earlier start of it is doubtful from now on."""
        self._rejoins += 1
        self._write(clock())

    def void(self, number: int) -> None:
        """The broker connection is lost: what has a token up to this number, and has not begun, goes back."""
        self._void = number
        confirmed_at, *_ = _LAYOUT.unpack_from(self._memory, 0)
        self._write(confirmed_at)

    def is_void(self, token: str) -> bool:
        """Whether a start that has not begun must not begin any more: its message was put back."""
        return int(token.rpartition(".")[2]) <= int(_LAYOUT.unpack_from(self._memory, 0)[2])

    def _write(self, confirmed_at: float) -> None:
        _LAYOUT.pack_into(
            self._memory,
            0,
            confirmed_at,
            self._rejoins,
            self._void,
            self._asked_at,
            self._returns,
            self._refusals,
        )

    def is_doubtful(self, token: str | None = None) -> bool:
        """Whether the lease may have run out, or ``token`` is older than the worker's last rejoin.

        While Redis is slow to answer it is as if it were away: others hear the heartbeats that it takes.
        """
        confirmed_at, rejoins, _, asked_at, *_ = _LAYOUT.unpack_from(self._memory, 0)
        now, outdated = clock(), token is not None and rejoins > 0 and self.is_outdated(token)
        return outdated or bool(now - confirmed_at > self._trust and not SLOW < now - asked_at < GIVEN_UP)

    def is_outdated(self, token: str) -> bool:
        """Whether the worker was taken for dead after it had made this start."""
        rejoins = int(_LAYOUT.unpack_from(self._memory, 0)[1])
        return rejoins > 0 and rejoins_before(token) < rejoins

    @property
    def returns(self) -> int:
        """How often Redis answered the main process again after it had been away."""
        return int(_LAYOUT.unpack_from(self._memory, 0)[4])

    @property
    def refusals(self) -> int:
        """How often Redis refused something between two heartbeats."""
        return int(_LAYOUT.unpack_from(self._memory, 0)[5])

    @property
    def is_unanswered(self) -> bool:
        """Whether the ledger is slow to answer a heartbeat."""
        return bool(SLOW < clock() - _LAYOUT.unpack_from(self._memory, 0)[3] < GIVEN_UP)


def born_as(token: str) -> str:
    """Return the boot id that the worker began with which has this token, or boot id."""
    return token.partition(".")[0].partition("r")[0]


def rejoins_before(token: str) -> int:
    """Return how often the worker had rejoined when it made this start."""
    return int(token.partition(".")[0].partition("r")[2] or 0)


def keep_child_alive(writer: Writer, keys: Keys, worker: str, settings: Settings, lease: Lease) -> None:
    """Start the thread of a pool process that keeps its own lease and its connection.

    Unanswered writes do not show that a connection leads nowhere: the main process, which is answered,
    finds out, and its processes connect anew as soon as Redis answers it again (NEW-8).

    Args:
        worker: the incarnation for which it runs tasks.
        lease: of its worker.
    """
    key, lasts = keys.child(worker, os.getpid()).encode(), int(settings.activation_interval * 1000)
    renewal = command(b"SET", key, b"1", b"PX", b"%d" % lasts)

    def work() -> None:
        returns, refusals = lease.returns, lease.refusals
        while True:
            with no_fork():
                writer.follow()
                if returns != (returns := lease.returns):
                    writer.renew()
                if refusals != (refusals := lease.refusals):
                    writer.repeat()
                writer.send(renewal)
            writer.wait(settings.heartbeat_interval)  # shorter when the connection breaks: it is opened anew

    start_real_thread(work, "poison-heartbeat")
