"""Workers in this process: what they receive, lose and get back, without the rest of Celery."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any
from unittest import mock
from uuid import uuid4

import kombu
import redis
from celery import Celery

from celery_poison.broker.books import Books
from celery_poison.broker.kinds import put_back
from celery_poison.broker.port import PutBack
from celery_poison.broker.redis.book import Book
from celery_poison.broker.transport import guarded_connection


def new_boot_id() -> str:
    return uuid4().hex[:16]


def _nobody_can_say(boot_id: str) -> None:
    return None


class Receiver:
    """One worker's receiving side, on a connection of ours or (``boot_id=""``) of plain kombu."""

    def __init__(self, site: Site, boot_id: str, queues: list[str], **kwargs: Any) -> None:
        self.site, self.boot_id = site, boot_id
        owner_is_alive, books = kwargs.pop("owner_is_alive", None), kwargs.pop("books", None)
        named = lambda: self.boot_id  # noqa: E731
        asked: tuple[Any, ...] = (named, owner_is_alive) if owner_is_alive else (named,)
        if books is not None:
            asked = named, owner_is_alive or _nobody_can_say, books
        self.kind: Any = guarded_connection(*asked) if boot_id else kombu.Connection
        self.connection = self.kind(site.url, transport_options=site.options)
        self.messages: list[Any] = []
        self.channel: Any = self.connection.default_channel
        declared = [kombu.Queue(name, exchange="", routing_key=name) for name in queues]
        self.consumer = kombu.Consumer(
            self.channel, declared, on_message=self.messages.append, accept=["json"], auto_declare=False
        )
        self.consumer.consume()

    def drain(self, condition: Callable[[], object], rounds: int = 3_000) -> None:
        """Receive until it is so."""
        for _ in range(rounds):
            if condition():
                return
            try:
                self.connection.drain_events(timeout=0.05)
            except TimeoutError:
                continue
        lists = {key: self.site.raw.llen(key) for key in self.site.raw.scan_iter(_type="list")}
        held, asked = self.site.raw.hlen(self.site.unacked), self.site.raw.client_list()
        told = f"lists {lists}, {held} unacked, clients {[(each['cmd'], each['db']) for each in asked]}"
        raise AssertionError(f"not so after {rounds} rounds; received {self.names()}; {told}")

    def receive(self, count: int) -> list[Any]:
        self.drain(lambda: len(self.messages) >= count)
        return self.messages

    def names(self) -> list[Any]:
        return [message.payload for message in self.messages]

    def die(self) -> None:
        """Go without putting anything back, as after SIGKILL."""
        self.channel.qos._on_collect.cancel()
        self.channel.do_restore = False
        if self.boot_id:
            self.channel._announced.clear()
        self.connection.close()


@dataclass
class Site:
    """A Redis broker, what was sent to it, and what lies where."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    receivers: list[Receiver] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.app = Celery(broker=self.url, set_as_current=False)
        self.app.conf.broker_transport_options = self.options
        with self.app.connection_for_read() as connection:
            self.raw = redis.Redis(connection_pool=connection.default_channel._get_pool())

    def close(self) -> None:
        for receiver in self.receivers:
            receiver.connection.close()
        self.app.close()

    @property
    def prefix(self) -> str:
        return str(self.options.get("global_keyprefix", ""))

    @property
    def unacked(self) -> str:
        return self.prefix + str(self.options.get("unacked_key", "unacked"))

    @property
    def index(self) -> str:
        return self.prefix + str(self.options.get("unacked_index_key", "unacked_index"))

    def send(self, *names: Any, queue: str = "a", **options: Any) -> None:
        with (
            self.app.connection_for_write() as connection,
            connection.Producer(serializer="json") as producer,
        ):
            for name in names:
                headers = {
                    "id": f"id-{name}",
                    "task": "t",
                    "empty": [],
                    "big": 2**60,
                    "poison_mid": f"m{name}",
                }
                producer.publish(name, exchange="", routing_key=queue, headers=headers, **options)

    def receiver(
        self, boot_id: str | None = None, queues: list[str] | None = None, **kwargs: Any
    ) -> Receiver:
        found = Receiver(self, new_boot_id() if boot_id is None else boot_id, queues or ["a", "b"], **kwargs)
        self.receivers.append(found)
        return found

    def put_back(self, boot_id: str, queues: tuple[str, ...] = ("a", "b")) -> PutBack:
        return put_back(self.app, boot_id, queues)

    # -- what lies where

    def waiting(self) -> dict[str, list[Any]]:
        """All queues as raw messages, the next one first; by the key without its prefix."""
        found = {}
        for key in self.keys():
            if self.raw.type(key) == b"list":
                items = self.raw.lrange(key, 0, -1)
                found[key.removeprefix(self.prefix)] = [json.loads(item) for item in reversed(items)]
        return found

    def keys(self) -> set[str]:
        return {key.decode() for key in self.raw.keys("*") if not re.search(rb"_kombu|poison\.returned", key)}

    def entries(self) -> dict[str, Any]:
        return {tag.decode(): json.loads(entry) for tag, entry in self.raw.hgetall(self.unacked).items()}

    def scores(self) -> dict[str, float]:
        return {tag.decode(): score for tag, score in self.raw.zrange(self.index, 0, -1, withscores=True)}

    def everything(self) -> list[str]:
        """What exists, wherever it lies: the names of all messages, sorted."""
        raw = [message for queue in self.waiting().values() for message in queue]
        raw += [entry[0] for entry in self.entries().values()]
        return sorted(message["headers"]["poison_mid"] for message in raw)


class Process:
    """One worker process on a broker: its connections come and go, its book stays.

    Attributes:
        in_use: the tags of what has begun.
        closed: the channels of which it was told that they close, before anything of theirs went back.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self.boot_id = new_boot_id()
        self.in_use: set[str] = set()
        self.closed: list[Any] = []
        self.books = Books(lambda: set(self.in_use), self.closed.append)

    def connect(self, queues: list[str] | None = None) -> Receiver:
        return self._site.receiver(self.boot_id, queues, books=self.books)

    @property
    def book(self) -> Book:
        (book,) = self.books.all()
        return book

    def begin(self, *messages: Any) -> None:
        self.in_use |= {message.delivery_tag for message in messages}

    def finish(self, message: Any) -> None:
        """Its task has ended, and it is acknowledged."""
        message.ack()
        self.in_use.discard(message.delivery_tag)


class Killed(BaseException):
    """The process is gone: nothing catches it."""


class Fuse:
    """Ends whoever sends another command when so many have reached Redis.

    Attributes:
        left: the commands that may still reach it; pipelined ones are counted singly.
        end: how whoever sends the next is ended.
    """

    def __init__(self, left: float = inf, end: type[BaseException] = Killed) -> None:
        self.left = left
        self.end = end

    def _allowed(self, wanted: int) -> int:
        now = int(min(self.left, wanted))
        self.left -= now
        return now

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put it into all connections of this process."""
        fuse, connection = self, redis.connection.AbstractConnection
        send = connection.send_packed_command
        pack_many, pack_one = connection.pack_commands, connection.send_command

        def pack_commands(self: Any, rows: Any) -> Any:
            rows = list(rows)
            granted = fuse._allowed(len(rows))
            if granted == len(rows):
                return pack_many(self, rows)
            if granted:
                send(self, pack_many(self, rows[:granted]))
                for _ in range(granted):
                    self.read_response()  # Redis has done it; nobody is told
            raise fuse.end("cut")

        def send_command(self: Any, *words: Any, **options: Any) -> Any:
            if self._sock is not None and not fuse._allowed(1):
                raise fuse.end("cut")
            return pack_one(self, *words, **options)

        with (
            mock.patch.object(connection, "pack_commands", pack_commands),
            mock.patch.object(connection, "send_command", send_command),
        ):
            yield


@contextmanager
def killed_after(commands: int, end: type[BaseException] = Killed) -> Iterator[None]:
    """Let so many commands reach Redis, then end whoever sends the next.

    Args:
        end: how. By a connection error: Redis is away, and nobody is told what the last commands did.
    """
    with Fuse(commands, end).installed():
        yield
