"""The unanswered writes of the hot path: a socket told to send no replies.

Why no replies: a process killed while unread replies lie in its receive buffer closes its socket with
a reset, and Redis drops what it had not read yet. With CLIENT REPLY OFF there is nothing to read, and
what was handed to the kernel survives the sender. What Redis refuses is lost in silence here; the
worker's main process notices it when it settles the start, and counts it as unguarded.

The same connection is a sign of life: it is subscribed to a channel of its worker, on which nothing is ever
published. Redis counts the subscribers, and a process that dies takes its connection along (EMS-2). That of a
monitor is subscribed to a second channel, too: nurseries say there that a worker has ended.
"""

from __future__ import annotations

import logging
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import redis
import redis.sentinel

from celery_poison.basics.forking import keep_from_forks, real_thread_starter, unpatched
from celery_poison.basics.text import decoded
from celery_poison.ledger.cluster import owner_of
from celery_poison.ledger.connection import REDIS_ERRORS

#: Seconds a write may block on a stalled Redis before the task goes on unguarded.
SEND_TIMEOUT = 0.5
#: Seconds for each answer while connecting; the write waits for it.
HANDSHAKE = 1.0
#: Seconds before the next attempt to connect after a failure.
RETRY_PAUSE = 0.2
#: Seconds of the longest such pause: a process that was frozen while it connected has not found Redis
#: stalled, and what begins in a pause is not on record.
LONGEST_PAUSE = 8.0

_RUN_ID = re.compile(rb"run_id:(\w+)")

# redis-py before 6 writes every subscription to the user's log.
logging.getLogger("push_response").setLevel(logging.WARNING)


def command(*words: bytes) -> bytes:
    """Return one Redis command in its wire format."""
    return b"".join([b"*%d\r\n" % len(words), *map(bulk, words)])


def bulk(word: bytes) -> bytes:
    """Return one word of a command in its wire format."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


class Writer:
    """Sends commands and waits for no answer; one connection for each process.

    Thread-safe. Opens its connection at the first write, and again after a fork.

    Args:
        channel: to be subscribed to while connected; empty: none.
        on_connect: returns the commands that come first on every new connection: what a Redis may not
            know, or not know any more.
        news: a second channel; what is published there ends :meth:`wait`.
        on_news: the next write calls it then, an empty one too.

    Attributes:
        follows_master: a Sentinel says where to connect, or the nodes of a cluster.
        run_id: of the Redis server at which this process is subscribed; empty while it is not, or may
            not be.
        connects: counts connections; another number may mean another server.
    """

    def __init__(
        self,
        client: redis.Redis,
        channel: str = "",
        on_connect: Callable[[], bytes] = lambda: b"",
        *,
        news: str = "",
        on_news: Callable[[], object] = lambda: None,
    ) -> None:
        self._pool: Any = client.connection_pool
        self.follows_master = isinstance(self._pool, redis.sentinel.SentinelConnectionPool)
        # A node ends such a subscription when it gives the slot away, replies or not.
        self._is_sharded = owner_of(self._pool) is not None
        self._channel = channel
        self._on_connect = on_connect
        self._news, self._on_news = news, on_news
        self.run_id = ""
        self._lock = threading.Lock()
        self._connection: Any = None
        self.connects = 0
        self._is_readable: Callable[[float], object] = lambda seconds: False
        self._pid = 0
        self._retry_at = 0.0
        self.failures = 0
        keep_from_forks(self, lambda writer: writer._connection._sock)

    def send(self, commands: bytes) -> bool:
        """Hand ``commands`` to the kernel; False when the ledger is away (counted in ``failures``)."""
        if self._pid != os.getpid():
            if self._pid and real_thread_starter() is not None:
                return False  # forked by a task: its greenlets go on there, and are no part of the worker
            self._adopt_process()
        with self._lock:
            try:
                self._ready()
                self._connection._sock.sendall(commands)
                return True
            except _Away:
                self.failures += 1
                return False
            except REDIS_ERRORS:
                self.failures += 1
                self._drop()
                return False

    def open(self) -> bool:
        """Connect if need be; False when the ledger is away."""
        return self.send(b"")

    def follow(self) -> tuple[str, int] | None:
        """Leave a Redis that is not the master any more; return the address of the one that was left.

        A Sentinel knows a new master long before the old one does, which takes writes until then, and
        loses them. The client's connections are left too.
        """
        if not self.follows_master:
            return None
        try:
            master = self._pool.get_master_address()
        except REDIS_ERRORS:
            return None  # not known at this moment
        connection = self._connection if self._pid == os.getpid() else None
        if connection is None or (connection.host, connection.port) == master:
            return None
        with self._lock:
            if self._connection is connection:
                self._drop(pause=0.0)
        return connection.host, connection.port

    def renew(self) -> None:
        """Give this connection up, since it may lead nowhere; the next write opens another at once."""
        if self._pid == os.getpid():
            with self._lock:
                self._drop(pause=0.0)

    def repeat(self) -> None:
        """Tell Redis once more what comes first on every new connection: it may have refused some of it."""
        if self._pid != os.getpid():
            return
        with self._lock:
            try:
                if self._connection is not None:
                    self._connection._sock.sendall(self._on_connect())
            except REDIS_ERRORS:
                self._drop()

    def hang_up(self) -> None:
        """Break the connection, so that :meth:`wait` returns; from any thread, and for the last time."""
        connection: Any = self._connection if self._pid == os.getpid() else None
        with suppress(AttributeError, OSError):  # it is closed at this very moment
            connection._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def wait(self, seconds: float) -> bool:
        """Wait until the connection breaks or brings news, at most ``seconds``; whether neither came."""
        connection = self._connection if self._pid == os.getpid() else None
        if connection is None:
            time.sleep(min(seconds, RETRY_PAUSE))
            return False
        try:
            return not waiter(connection._sock)(seconds)
        except (TypeError, ValueError, AttributeError, OSError):  # closed at this very moment
            return False

    def _ready(self) -> None:
        # A readable socket that expects no replies has been closed by the server, or brings news.
        if self._connection is None or (self._is_readable(0) and not self._brings_news()):
            try:
                self._reconnect()
            except _Away:  # must not prolong the pause: a busy sender would never come back
                raise
            except BaseException:
                self._drop()
                raise

    def _brings_news(self) -> bool:
        with suppress(*REDIS_ERRORS):
            if self._news and (news := self._connection._sock.recv(4096)) and b"sunsubscribe" not in news:
                self._on_news()
                return True
        return False

    def _adopt_process(self) -> None:
        # The parent's socket must not be shared, and its lock may have been held at the fork.
        self._lock = threading.Lock()
        self._connection = None
        self.run_id = ""
        self._retry_at = 0.0  # the parent's pause is none of this process's business
        self._pid = os.getpid()

    def _reconnect(self) -> None:
        if self._connection is not None:
            self._drop(pause=0.0)
        if time.monotonic() < self._retry_at:
            raise _Away
        began = time.monotonic()
        try:
            connection = self._connected()
        finally:  # a stalled Redis must not cost every caller the same time again
            now = time.monotonic()
            self._retry_at = now + min(max(RETRY_PAUSE, 4 * (now - began)), LONGEST_PAUSE)
        connection.send_command("CLIENT", "REPLY", "OFF")
        connection._sock.settimeout(SEND_TIMEOUT)
        connection._sock.sendall(self._on_connect())
        self._connection = connection
        # Greenlets would wait for a turn of their loop, which no time at all is not worth.
        self._is_readable = _polling(connection._sock, unpatched("select", "poll"))
        self.connects += 1

    def _connected(self) -> Any:
        connect = self._pool.connection_class
        options = {**self._pool.connection_kwargs, "socket_timeout": HANDSHAKE}
        options.pop("maint_notifications_config", None)  # it would ask for words that are not read here
        options.pop("maint_notifications_pool_handler", None)
        if self._channel:
            connection = connect(**{**options, "protocol": 3})  # the newer protocol: subscribers may write
            try:
                connection.connect()
                self.run_id = self._subscribe(connection)
                return connection
            except redis.ResponseError:  # no permission, or a proxy that knows no channels
                connection.disconnect()
                self._channel = ""
        connection = connect(**options)
        connection.connect()
        return connection

    def _subscribe(self, connection: Any) -> str:
        connection.send_command("INFO", "server")
        run_id = _RUN_ID.search(connection.read_response())
        if self._is_sharded:
            connection.send_command("INFO", "replication")
            if b"role:master" not in connection.read_response():  # it subscribes all the same
                raise redis.ConnectionError("this node of the cluster has become a replica")
        connection.send_command("SSUBSCRIBE" if self._is_sharded else "SUBSCRIBE", self._channel)
        connection.read_response(push_request=True)
        if self._news:
            with suppress(redis.ResponseError):  # no permission: the rounds find out, a little later
                connection.send_command("SUBSCRIBE", self._news)
                connection.read_response(push_request=True)
        return decoded(run_id[1]) if run_id else ""

    def _drop(self, pause: float = RETRY_PAUSE) -> None:
        connection, self._connection = self._connection, None
        self.run_id = ""
        self._retry_at = max(self._retry_at, time.monotonic() + pause) if pause else 0.0
        if connection is not None:
            # A half-sent command must not be completed by the next one: the socket is done for.
            connection.disconnect()


def waiter(sock: Any) -> Callable[[float], object]:
    """Return what waits some seconds until ``sock`` is readable or broken, and returns whether it is."""
    if not hasattr(select, "poll"):  # eventlet takes it away
        return lambda seconds: select.select([sock], [], [], seconds)[0]
    return _polling(sock, select.poll)


def _polling(sock: Any, kind: Callable[[], Any]) -> Callable[[float], object]:
    poll = kind()
    poll.register(sock, select.POLLIN | select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0))
    return lambda seconds: poll.poll(int(seconds * 1000))


class _Away(redis.ConnectionError):
    """The pause after a failed connection is not over yet."""

    def __init__(self) -> None:
        super().__init__("it was not a moment ago")
