"""The threads of a worker: its event loop, the one that talks to the ledger meanwhile, and real ones.

The event loop's alone may touch the broker, and it never waits for Redis. Where gevent or eventlet have put
greenlets in the place of threads, a greenlet cannot beat while a task keeps the interpreter busy, and its
worker would be taken for dead. A real thread can; but it must not share locks or connections with greenlets.
"""

from __future__ import annotations

import heapq
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

from celery.utils.log import get_logger

from celery_poison.basics.forking import no_fork, real_thread_starter
from celery_poison.errors import LedgerUnavailable, PoisonError

logger = get_logger("celery_poison")


class LoopClock:
    """The clock that each turn of the event loop sets; any thread may read it.

    A worker whose broker is away, or that leaves, has no loop: nothing stands then.
    """

    def __init__(self) -> None:
        self._turned: float | None = None
        self._is_on = False
        self._away_since: float | None = None

    def turn(self) -> None:
        """Note a turn of the loop; one comes each second or two, even where nothing happens."""
        self._turned = time.monotonic()

    def follow(self, consumer: Any) -> None:
        """Hear the turns of the loop that has no hub: solo, threads and greenlets, brokers without one."""
        perform = consumer.perform_pending_operations

        def turn_and_perform() -> None:
            self.turn()
            perform()

        consumer.perform_pending_operations = turn_and_perform

    def follow_hub(self, hub: Any) -> None:
        """Hear the turns of a hub, from now on."""
        hub.on_tick.add(self.turn)

    def connected(self) -> None:
        """Note a new broker connection: a loop is about to begin."""
        self._turned, self._is_on, self._away_since = None, True, None

    def away(self) -> None:
        """Note that the broker connection is gone, and the loop with it."""
        self._is_on, self._away_since = False, time.monotonic()

    def left(self) -> None:
        """Note that the worker leaves."""
        self._is_on, self._away_since = False, None

    def turned_ago(self) -> float | None:
        """Return the seconds since the loop turned; None: it has not begun to, or there is none."""
        turned = self._turned
        return time.monotonic() - turned if self._is_on and turned is not None else None

    def away_for(self) -> float | None:
        """Return the seconds for which there has been no broker connection; None: there is one."""
        since = self._away_since
        return time.monotonic() - since if since is not None else None


class StartAfresh(ConnectionResetError):
    """Celery takes this for a lost connection: it drops what had not begun, and connects anew."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"celery_poison: this worker begins afresh: {reason}")


class EventLoop:
    """Runs callables on the event loop of the current consumer, in the order they were sent.

    Attributes:
        consumer: of the present broker connection; None before the first.
        epoch: number of that connection; changes when it is lost, too. What came by an earlier one is void.
        clock: when the loop last turned.
        handing: how many requests it gives to the pool at this moment; each may wait for a free greenlet.
        is_filled_by_delays: messages that wait for their time take the places of others.
        can_lend: others may use the prefetch credit of what waits here.
    """

    handing = 0

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._asked = self._has_run_until = 0.0
        self.consumer: Any = None
        self.epoch = 0
        self.clock = LoopClock()
        self.is_filled_by_delays, self.can_lend = False, True

    def start_afresh(self, reason: str) -> None:
        """Leave the broker and come back (on the event loop)."""
        if self.consumer.hub is not None:
            raise StartAfresh(reason)
        if self.consumer.connection is not None:  # else it is about to come back already
            self.consumer.connection.break_off(StartAfresh(reason))

    def register(self, hub: Any) -> None:
        """Wake up ``hub`` for every call; needed anew each time its loop starts."""
        hub.add_reader(self._reader, self.drain)
        self.clock.follow_hub(hub)
        self._wake()

    def call_in_loop(self, function: Callable[[], object]) -> None:
        """Run ``function`` on the event loop, soon."""
        self._calls.append(function)
        if self.consumer is None or self.consumer.hub is not None:
            self._wake()
        elif self.consumer.pool.is_green:
            # All threads are greenlets of one thread. The caller must go on where a message is handed to a
            # full pool, which waits for a free greenlet there (celery/concurrency/gevent.py, eventlet.py).
            threading.Thread(target=self.drain, name="poison-loop", daemon=True).start()
        else:
            self.consumer.call_soon(self.drain)

    def has_run_until(self) -> float:
        """Return a time, by the monotonic clock, until which the loop has run what it was sent.

        It may hang: where the broker goes away while Celery replies to a remote command, kombu tries to
        send the reply until the broker is back, and no thread notices before that the connection is gone
        (celery #6911).
        """
        if self._has_run_until >= self._asked:
            self._asked = time.monotonic()
            self.call_in_loop(partial(setattr, self, "_has_run_until", self._asked))
        return self._has_run_until

    def deferred(self, function: Callable[..., object]) -> Callable[..., None]:
        """Return a function that runs ``function`` on the event loop, soon; from any thread."""
        return lambda *args: self.call_in_loop(partial(function, *args))

    def _wake(self) -> None:
        with suppress(OSError):  # the pipe is full: the loop is being woken up already
            self._writer.send(b"!")

    def close(self) -> None:
        """Close what wakes it up."""
        self._reader.close()
        self._writer.close()

    def drain(self) -> None:
        """Run everything that was sent; an error must not reach the event loop, which would end."""
        with suppress(OSError):
            while self._reader.recv(4096):
                pass
        while self._calls:
            function = self._calls.popleft()
            try:
                function()
            except StartAfresh:
                raise  # the one error that is meant for the event loop
            except Exception:
                logger.exception("celery_poison: a decision could not be carried out")


FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
#: Items that are done together at most.
TOGETHER = 100


class Retry(Exception):
    """Raised by a job that wants to be run again after ``pause`` seconds."""

    def __init__(self, pause: float) -> None:
        super().__init__(pause)
        self.pause = pause


class _Due(NamedTuple):
    at: float
    number: int
    job: Callable[..., Any]
    unavailable: Callable[[], bool] | None
    pause: float
    item: Any = None


class Background:
    """Does jobs one after the other, each when it is due.

    Args:
        complain: called with an error for every job that Redis failed.
    """

    def __init__(self, complain: Callable[[Exception], None]) -> None:
        self._complain = complain
        self._due: list[_Due] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._busy = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="poison-background", daemon=True)
            self._thread.start()

    def do(self, job: Callable[[], Any], unavailable: Callable[[], bool] | None = None) -> None:
        """Do ``job`` in the background thread.

        Args:
            unavailable: asked when Redis is away, or the job fails otherwise; False gives the job up, True
                (and no function at all) tries again after a growing pause: a message may depend on it.
        """
        self._put(0.0, job, unavailable, FIRST_PAUSE)

    def do_together(
        self,
        job: Callable[[list[Any]], list[Exception | None]],
        item: Any,
        unavailable: Callable[[], bool] | None = None,
    ) -> None:
        """Do ``job`` in the background thread with ``item``, and with those behind it for the same job.

        Args:
            job: is given at most ``TOGETHER`` items, and returns for each of them None or an error; it raises
                only before it has done anything.
            unavailable: asked when Redis is away: False gives the item up. After any other error it is tried
                again, after a growing pause: nothing has been judged.
        """
        self._put(0.0, job, unavailable, FIRST_PAUSE, item)

    def _put(self, after: float, job: Any, unavailable: Any, pause: float, item: Any = None) -> None:
        with self._changed:
            entry = _Due(time.monotonic() + after, next(self._numbers), job, unavailable, pause, item)
            heapq.heappush(self._due, entry)
            self._changed.notify_all()

    def _work(self) -> None:
        while not self._stopping:
            with self._changed:
                wait = self._due[0].at - time.monotonic() if self._due else 1.0
                if wait > 0:
                    self._changed.wait(min(wait, 1.0))
                    continue
                entries = self._next()
                self._busy = True
            self._attempt(entries)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> list[_Due]:
        """Take the next job that is due, and with it what can be done together with it.

        Look-ups and acquittals alternate: each overtakes the other to join its own kind, but nothing else.
        """
        entries, passed = [heapq.heappop(self._due)], list[_Due]()
        if entries[0].item is not None:
            while len(entries) < TOGETHER > len(passed) and self._is_due() and self._due[0].item is not None:
                entry = heapq.heappop(self._due)
                (entries if entry.job == entries[0].job else passed).append(entry)
        for entry in passed:
            heapq.heappush(self._due, entry)
        return entries

    def _attempt(self, entries: list[_Due]) -> None:
        job, items = entries[0].job, [entry.item for entry in entries]
        errors: list[Exception | None] = [None]
        try:
            with no_fork():
                if items == [None]:
                    job()
                else:
                    errors = job(items)
        except Exception as error:
            if len(entries) > 1 and not isinstance(error, LedgerUnavailable):
                for entry in entries:  # what is wrong with one must not hold up the others
                    self._attempt([entry])
                return
            errors = [error] * len(entries)
        for entry, failed in zip(entries, errors, strict=True):
            if failed is not None:
                self._try_again(entry, failed)

    def _try_again(self, entry: _Due, error: Exception) -> None:
        if isinstance(error, Retry):
            self._put(error.pause, entry.job, entry.unavailable, FIRST_PAUSE, entry.item)
            return
        is_away = isinstance(error, LedgerUnavailable)
        if not is_away and entry.pause == FIRST_PAUSE:
            logger.error("celery_poison: a job for the ledger failed", exc_info=error)
        self._complain(error)
        if not is_away and isinstance(error, PoisonError):
            return  # it was refused, and would be again
        unavailable = entry.unavailable if is_away or entry.item is None else None
        if unavailable is None or unavailable():
            self._put(
                entry.pause, entry.job, entry.unavailable, min(2 * entry.pause, LONGEST_PAUSE), entry.item
            )

    def finish(self, patience: float) -> bool:
        """Wait until no job is due any more, at most ``patience`` seconds; stop the thread."""
        deadline = time.monotonic() + patience
        with self._changed:
            while (self._busy or self._is_due()) and time.monotonic() < deadline:
                self._changed.wait(0.05)
            self._stopping = True
            self._changed.notify_all()
            return not (self._busy or self._is_due())

    def end(self, patience: float) -> None:
        """Wait at most so many seconds, once it is finished, for the thread to end."""
        if self._thread is not None:
            self._thread.join(patience)

    def _is_due(self) -> bool:
        return bool(self._due) and self._due[0].at <= time.monotonic()


T = TypeVar("T")

#: Seconds between two looks at whether a call is done. A lock would have to be shared with greenlets.
_LOOK_AGAIN = 0.0005


def start_real_thread(work: Callable[[], None], name: str) -> None:
    """Run ``work`` in a real thread that does not keep the process alive."""
    begin = real_thread_starter()
    if begin is None:
        threading.Thread(target=work, name=name, daemon=True).start()
    else:
        begin(work, ())


def call_in_real_thread(work: Callable[[], T], seconds: float) -> T:
    """Return what ``work`` returns, in a real thread that is left to itself when it takes too long.

    Raises:
        TimeoutError: it took longer than ``seconds``.
        Exception: what ``work`` raised; what would end a process as a RuntimeError.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    start_real_thread(attempt, "poison-call")
    deadline = time.monotonic() + seconds
    while not results and not errors:
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(_LOOK_AGAIN)
    if results:
        return results[0]
    (error,) = errors
    raise (
        error
        if isinstance(error, Exception) and not isinstance(error, TimeoutError)
        else RuntimeError(repr(error))
    )
