"""How a channel that waits on one list hears that something came into another (NEW-31).

Redis remembers which keys a connection has read, and says once, at a second connection, when one of them has
changed (``CLIENT TRACKING``). A thread reads the second connection, and ends the wait of the first
(``CLIENT UNBLOCK``), whose script then fetches what came, as after any wait. So kombu's event loop reads
answers to what it has asked and nothing else, and no message takes another way than without all this.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import uniform
from time import monotonic, sleep
from typing import Any, NamedTuple

from celery.utils.log import get_logger
from redis.exceptions import ConnectionError, NoPermissionError, ResponseError

from celery_poison.basics.forking import keep_from_forks, no_fork
from celery_poison.broker.redis.unacked import arriving_key
from celery_poison.ledger.in_step import keep_in_step

logger = get_logger("celery_poison")

#: Seconds of a wait on one list while Redis says what comes into the others.
PATIENCE = 2.0
#: The longest random pause, in seconds, before a wait is ended: one of many workers should come first.
CHANCE = 0.008
#: Seconds between two looks of a worker, where other workers take the messages that Redis announces.
BETWEEN = 0.1
#: Seconds between two tries to end a wait, which may be on its way still: the first pause, and all in all.
AGAIN, IN_ALL = 0.002, 0.5
#: Seconds of silence after which the second connection is tried, and for which its answer is waited for.
SILENCE, ANSWER = 30.0, 5.0
#: Seconds until a lost second connection is opened anew.
PAUSE = 5.0


class Wait(NamedTuple):
    """A wait: the id of the connection that waits, and the list on which it does."""

    client: int
    key: bytes


class Ear:
    """A channel's second connection, and the thread that reads it.

    Args:
        pool: makes the connection.
        is_noise: whether a key is none of the lists.

    Attributes:
        id: of the connection; 0: it is not open yet, or not any more.
        is_over: it will not be open any more.
        refusal: why Redis does not allow it; None: it does, as far as is known.
        was_told: a list has changed; whoever asks all lists sets it to False before.
        wait: the wait that goes on; None: none.
    """

    def __init__(self, pool: Any, is_noise: Callable[[bytes], bool]) -> None:
        self.id = 0
        self.is_over = self.was_told = False
        self.refusal: Exception | None = None
        self.wait: Wait | None = None
        self._pool, self._is_noise = pool, is_noise  # a Sentinel's connection asks its pool for the master
        self._connection = pool.make_connection()
        self._sending = threading.Lock()
        self._ended_at = 0.0
        keep_from_forks(self, lambda ear: ear._connection._sock)
        threading.Thread(target=self._work, name="poison-ear", daemon=True).start()

    def close(self) -> None:
        """Have the thread end; from any thread."""
        self.is_over = True
        with suppress(AttributeError, OSError):  # it is closed at this very moment
            self._connection._sock.shutdown(2)

    def end_wait(self) -> None:
        """End the wait at once; from any thread. It ends by itself if that fails."""
        if (wait := self.wait) is not None and self.id:
            with suppress(Exception):
                self._send("CLIENT", "UNBLOCK", wait.client)

    def _send(self, *words: Any) -> None:
        with self._sending:
            if self.is_over or self._connection._sock is None:  # else it would connect anew
                raise ConnectionError("it is closed")
            self._connection.send_command(*words, check_health=False)

    # --- in its thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            with no_fork():
                self._open()
            while not self.is_over:
                self._listen()
        except Exception as error:
            self.refusal = error if _is_for_good(error) else None
            logger.debug("celery_poison: the second connection of a channel is lost: %s", error)
        finally:
            with self._sending:
                self.id, self.is_over = 0, True
                with suppress(Exception):
                    self._connection.disconnect()

    def _open(self) -> None:
        self._connection.connect()
        hear = getattr(self._connection._parser, "set_invalidation_push_handler", None)
        if hear is None:
            raise NotImplementedError("this version of redis-py hears nothing that it has not asked for")
        hear(lambda push: push)
        # No client has the id 0: the first command only asks whether it is allowed.
        for words in (("CLIENT", "UNBLOCK", 0), ("CLIENT", "ID")):
            self._send(*words)
            answer = self._connection.read_response()
        self.id = int(answer)

    def _listen(self) -> None:
        if not self._connection.can_read(timeout=SILENCE):
            self._send("PING")
            if not self._connection.can_read(timeout=ANSWER):
                raise ConnectionError("no answer")
        told = self._next()
        if isinstance(told, list) and told[0] == b"invalidate":
            self._hear(told[1])

    def _next(self) -> Any:
        """Return what Redis says next: a list where it is an announcement, no answer."""
        return self._connection.read_response(disable_decoding=True, push_request=True)

    def _hear(self, keys: Sequence[bytes] | None) -> None:
        """Act on a change of these keys, or of all (None)."""
        keys = keys and [key for key in keys if not self._is_noise(key)]
        if keys is not None and not keys:
            return
        self.was_told = True  # before the look at the wait: who begins one looks here after that
        wait = self.wait
        if wait is None or (keys and all(key == wait.key for key in keys)):  # its wait ends by itself
            return
        sleep(max(uniform(0.0, CHANCE), self._ended_at + BETWEEN - monotonic()))
        self._end(wait)

    def _end(self, wait: Wait) -> None:
        pause, until = AGAIN, monotonic() + IN_ALL
        while self.wait is wait and not self.is_over:
            self._send("CLIENT", "UNBLOCK", wait.client)
            answer = self._next()
            while isinstance(answer, list):  # the look that follows covers an announcement that comes now
                answer = self._next()
            if answer or monotonic() > until:
                break
            sleep(pause)
            pause *= 2
        self._ended_at = monotonic()


class Tracking:
    """The news of one channel's lists; on its event loop."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._ear: Ear | None = None
        #: The socket of the channel's connection whose reads Redis tracks, and that connection's id.
        self._socket: Any = None
        self._client = 0
        #: All lists, as they were read last, and empty; None: they were not.
        self._empty: Sequence[str] | None = None
        self._looked_at = 0.0
        self._retry_at = 0.0
        self._is_refused = False

    def begin(self) -> None:
        """Open the second connection, unless it is open, or being opened, or refused."""
        ear = self._ear
        if ear is not None and ear.is_over:
            if ear.refusal is not None:
                self._refuse(ear.refusal)
            self._ear, self._socket, self._retry_at = None, None, monotonic() + PAUSE
        if self._ear is None and not self._is_refused and monotonic() >= self._retry_at:
            self._ear = Ear(_pool_of(self._channel), self._noise())

    def _noise(self) -> Callable[[bytes], bool]:
        # Redis 6.2 and 7.0 say it of all keys of a script, not of those alone that this has read.
        channel, prefix = self._channel, self._channel.global_keyprefix or ""
        theirs = {(prefix + key).encode() for key in (channel.unacked_key, channel.unacked_index_key)}
        arriving = (prefix + arriving_key(channel.boot_id, "")).encode()
        return lambda key: key in theirs or key.startswith(arriving)

    def _refuse(self, error: Exception) -> None:
        self._is_refused = True
        logger.info("celery_poison: an idle worker asks for its other queues again and again: %s", error)

    def questions(self, connection: Any) -> list[list[Any]]:
        """Return the commands from which on Redis says what changes; none where it does, or cannot."""
        ear = self._ear
        if ear is None or not ear.id or connection._sock is None:
            return []
        if self._socket is None:
            self._socket = connection._sock
        elif self._socket is connection._sock:
            return []
        else:  # another connection, perhaps to another server: one that is as new goes with it
            self.close()
            return []
        return [["CLIENT", "ID"], ["CLIENT", "TRACKING", "ON", "REDIRECT", ear.id, "NOLOOP"]]

    def take_replies(self, client: Any, tracking: Any) -> None:
        """Take the replies to :meth:`questions`; each may be an error."""
        for reply in (client, tracking):
            if isinstance(reply, ResponseError):
                if _is_for_good(reply):
                    self._refuse(reply)
                self._retry_at = monotonic() + PAUSE
                return self.close()
        self._client = int(client)

    def patience(self, connection: Any, lists: Sequence[str], key: str) -> float | None:
        """Return the seconds of the next wait on ``key``; 0: there is something already; None: not told.

        From then on the wait may be ended at any moment.

        Args:
            lists: those that are asked after the wait.
        """
        ear = self._ear
        if ear is None or not ear.id or not self._client or self._socket is not connection._sock:
            return None
        if self._empty != lists:
            return None
        ear.wait = Wait(self._client, key.encode())
        if not ear.was_told:  # after it is known that this one waits
            return self._longest()
        ear.wait = None
        return 0.0 if monotonic() - self._looked_at >= BETWEEN else BETWEEN

    def _longest(self) -> float:
        # kombu takes a connection for lost that does not answer for this interval and a second.
        interval = getattr(self._channel, "health_check_interval", None) or math.inf
        longest: float = self._channel.books.longest_wait
        return min(PATIENCE, max(1.0, interval / 2), longest)

    def asks(self) -> None:
        """Note that all lists are about to be asked."""
        self._looked_at = monotonic()
        if self._ear is not None:
            self._ear.was_told = False

    def asked(self, empty: Sequence[str] | None) -> None:
        """Note that this is over; all these lists were read, and empty (None: they were not)."""
        self._empty = empty
        if self._ear is not None:
            self._ear.wait = None

    def end_wait(self) -> None:
        """End the wait that goes on, if one does; it ends by itself if that fails."""
        if self._ear is not None:
            self._ear.end_wait()

    def close(self) -> None:
        """Close the second connection."""
        if self._ear is not None:
            self._ear.close()
        self._ear, self._socket, self._client, self._empty = None, None, 0, None


def _is_for_good(error: Exception) -> bool:
    """Whether an error will be the same the next time; a Redis that is busy, say, is another matter."""
    if isinstance(error, (NoPermissionError, NotImplementedError)):
        return True
    return isinstance(error, ResponseError) and any(
        word in str(error).lower() for word in ("unknown", "syntax")
    )


def _pool_of(channel: Any) -> Any:
    """Return a pool for the broker of a channel, by the protocol in which a server speaks unasked."""
    pool = channel._get_pool()
    keep_in_step(pool)
    for option in ("maint_notifications_config", "maint_notifications_pool_handler"):
        pool.connection_kwargs.pop(option, None)  # it would ask for words that are not read here
    pool.connection_kwargs.update(protocol=3, health_check_interval=0)
    return pool
