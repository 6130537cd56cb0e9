"""``poison_durability="sync"`` where tasks run: Redis itself may die, the start of a task is safe before."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis
from celery.utils.log import get_logger

from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.ledger import Ledger
from celery_poison.ledger.durability import PROMISE_TIMEOUT, Means, WaitingWriter, find_means
from celery_poison.ledger.writer import Writer, command
from celery_poison.settings import Settings
from celery_poison.upstream.requests import NeverBegan

logger = get_logger("celery_poison")

#: Least seconds in which nothing is asked of a Redis that broke its promise, and how many times as long
#: as the vain wait they are: so a fifth of the time is lost at most (``poison_fail_open=True``).
LEAST_DOUBT, DOUBT = 1.0, 4
#: Seconds between two attempts where a task may not begin without the promise.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0

#: Said where Redis cannot be asked when the worker starts.
LATER = "every pool process asks what Redis can promise as soon as it is there"


class NotKept(LedgerUnavailable):
    """A write is on record, but neither disk nor replica has said in time that it will stay there."""


class Durable:
    """Writes starts that survive Redis itself; thread-safe, and inherited by pool processes.

    Args:
        writer: the unanswered writes of this process; a start without a promise is one of them.
        fail_open: what is done without the promise: True runs the task, False tries again and again.
    """

    def __init__(self, client: redis.Redis, writer: Writer, *, fail_open: bool) -> None:
        self._client = client
        self._writer = writer
        self._waiting = WaitingWriter(client)
        self._fail_open = fail_open
        self._means: Means | None = None
        self._said: Means | None = None
        self._decided_for: int | None = None
        self._doubted_until = 0.0
        self._broken_by: type[Exception] | None = None

    def decide(self) -> Means:
        """Choose the means; say so in the log if they are new.

        Raises:
            ConfigurationError, LedgerUnavailable: see :func:`celery_poison.ledger.durability.find_means`.
        """
        means = find_means(self._client)
        # Pool processes need this client for nothing else: it must not cost a connection for each of them.
        self._client.connection_pool.disconnect(inuse_connections=False)
        if means != self._said:
            self._said = means
            logger.info("celery_poison: poison_durability='sync': a start is %s", means.said)
            if means.slow:
                logger.warning("celery_poison: poison_durability='sync': %s", means.slow)
        return means

    def write(self, start: bytes, worker_key: str, is_lost: Callable[[], bool]) -> bool:
        """Write a start and wait until it is safe; False when its task runs without the promise.

        Args:
            worker_key: the worker's hash, where starts without a promise are counted.
            is_lost: whether the message was put back, because this worker seemed dead.

        Raises:
            NeverBegan: it was put back while its start waited.
        """
        pause = FIRST_PAUSE
        while not (safe := self._once(start, worker_key)) and not self._fail_open:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            if is_lost():  # what a new owner has written must not be overwritten
                break
        if is_lost():
            raise NeverBegan("its message was put back before it began")
        return safe

    def _once(self, start: bytes, worker_key: str) -> bool:
        if self._fail_open and time.monotonic() < self._doubted_until:
            self._writer.send(start + _counted(worker_key))
            return False
        begun = time.monotonic()
        try:
            self._promise(start)
        except (LedgerUnavailable, ConfigurationError) as error:
            if self._broken_by is not type(error):
                self._broken_by = type(error)
                so = "tasks run without the promise" if self._fail_open else "the task waits"
                logger.warning("celery_poison: poison_durability='sync': %s; %s (said once)", error, so)
            self._doubted_until = time.monotonic() + max(LEAST_DOUBT, DOUBT * (time.monotonic() - begun))
            if self._fail_open:
                # What never arrives is counted by the main process, when it settles it.
                self._writer.send((b"" if isinstance(error, NotKept) else start) + _counted(worker_key))
            return False
        return True

    def _promise(self, start: bytes) -> None:
        self._writer.open()
        server = self._writer.connects  # connected anew meanwhile: to what may be another server
        if self._means is None or self._decided_for != server:
            self._waiting.renew()
            self._means = self.decide()
            self._decided_for = server
        means = self._means
        wait = command(*(word.encode() for word in means.wait)) if means.wait else b""
        *_, kept = self._waiting.write(start + wait, 2 if wait else 1)
        if wait and (kept[0] if isinstance(kept, list) else kept) < 1:
            self._means = None  # the replica is gone, or the settings have changed
            raise NotKept(f"no start is {means.said}: not within {PROMISE_TIMEOUT:g} s")
        if self._broken_by is not None:
            self._broken_by = None
            logger.warning("celery_poison: poison_durability='sync': starts are safe again")


def _counted(worker_key: str) -> bytes:
    key = worker_key.encode()
    return command(b"HINCRBY", key, b"unpromised", b"1") + command(b"EXPIRE", key, b"86400")


def open_durable(settings: Settings, ledger: Ledger, writer: Writer) -> Durable | None:
    """Return the writer that makes starts safe; None with ``poison_durability="process"``."""
    if settings.durability != "sync":
        return None
    return Durable(ledger.client, writer, fail_open=settings.fail_open)
