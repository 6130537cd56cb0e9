"""Brings messages of the outbox to the broker: Redis, RabbitMQ, or any other of kombu's (TP1-2, TP1-7)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from celery import Celery
from celery.utils.log import get_logger
from kombu import Producer
from kombu.common import maybe_declare
from redis import Redis

from celery_poison.broker.bounds import bounded_options
from celery_poison.broker.capture import Outgoing
from celery_poison.broker.kinds import broker_of
from celery_poison.broker.port import Broker, Push, Unroutable
from celery_poison.errors import QueueFull
from celery_poison.extension import Extensions
from celery_poison.extensions.outbox.lanes import Copy
from celery_poison.extensions.outbox.send_failures import Cause, NotSent, cause_of
from celery_poison.headers import MARK, OUTBOX, PARK

logger = get_logger("celery_poison")

#: Seconds until a broker counts as away, and until an answer of its counts as missing.
CONNECT_TIMEOUT = 2.0
ANSWER_TIMEOUT = 5.0
_BOUNDS = {
    "socket_timeout": ANSWER_TIMEOUT,
    "socket_connect_timeout": CONNECT_TIMEOUT,
    "read_timeout": ANSWER_TIMEOUT,
    "write_timeout": ANSWER_TIMEOUT,
    "connect_timeout": CONNECT_TIMEOUT,
}


class Handover:
    """One connection to the broker of one app, for one thread.

    Args:
        ledger: the ledger's Redis: where the broker's queues are in the same database, nothing is sent here,
            and the step that takes a message out of the outbox puts it into its queue.
    """

    def __init__(self, app: Celery, ledger: Redis, extensions: Extensions) -> None:
        self._app = app
        self._ledger = ledger
        self._extensions = extensions
        self._connection: Any = None
        self._broker = Broker()
        self._confirms: _Confirms | None = None
        #: Whether the broker is known to be the ledger's database. Where it is not, a message can be in the
        #: outbox and in its queue at once, and is noted before it is sent.
        self.is_atomic = False

    def send(self, messages: Sequence[tuple[int, int, Outgoing]]) -> list[Copy]:
        """Send messages of one lane, given as (number, note, message), in their order.

        Returns:
            what takes each of them out of the outbox. Where their queue has no room for all, the first ones.

        Raises:
            NotSent: it is not certain that the broker has all of them; or their queue is full (MSG-4).
        """
        try:
            channel = self._open()
        except NotSent:
            raise
        except Exception as error:
            self.close()
            raise NotSent(cause_of(error), _said(error), reached=False) from error
        confirms = self._confirms
        if self.is_atomic:
            # It goes out in one step with its message: a note was made before that was known, and the look-up
            # of a noted message would let others overtake it.
            messages = [(seq, 0, message) for seq, _, message in messages]
        try:
            messages = self._with_room(messages)
            self._declare(channel, messages)
            copies = self._push(channel, messages)
            if confirms is not None:
                confirms.wait(ANSWER_TIMEOUT)
            return copies
        except Exception as error:
            self.rest()
            known = confirms.confirmed if confirms else set[int]()
            sure = [_copy_of(seq, note, message) for seq, note, message in messages if seq in known]
            if isinstance(error, NotSent):
                raise NotSent(error.cause, error.detail, reached=error.reached, confirmed=sure) from error
            raise NotSent(cause_of(error), _said(error), confirmed=sure) from error

    def tell(self, messages: Iterable[Outgoing]) -> None:
        """Send the event ``task-sent`` of those that want it; nobody minds if it is lost."""
        for message in messages:
            if message.event is not None and self._connection is not None:
                with suppress(Exception):
                    dispatcher = self._app.amqp._event_dispatcher
                    fields = {**message.event, "queue": message.queue}
                    dispatcher.publish("task-sent", fields, Producer(self._connection), retry=False)

    def rest(self) -> None:
        """Give up a connection that nothing is sent on, unless something is under way on it."""
        if not (self._confirms and self._confirms.blocked):
            self.close()

    def close(self) -> None:
        """Give the connection up: a late answer on it must not be taken for that of another message."""
        connection, self._connection, self._confirms = self._connection, None, None
        self.is_atomic = False
        if connection is not None:
            with suppress(Exception):
                connection.collect()

    def _open(self) -> Any:
        if self._confirms is not None and self._confirms.blocked:
            # What was published last is under way. On another connection it would be one copy more each time.
            self._confirms.wait_until_unblocked()
            self.close()
        if self._connection is None:
            options = {**bounded_options(self._app), **_BOUNDS, "confirm_publish": False}
            connection = self._app.connection_for_write(transport_options=options)
            connection.connect()
            self._connection = connection
            self._broker = broker_of(connection)
            if self._broker.confirms(connection):
                self._confirms = _Confirms(connection, connection.default_channel)
            self.is_atomic = self._broker.is_database_of(connection.default_channel, self._ledger)
        return self._connection.default_channel

    def _with_room(
        self, messages: Sequence[tuple[int, int, Outgoing]]
    ) -> Sequence[tuple[int, int, Outgoing]]:
        """Return the first messages of a lane, as many as their queue has room for.

        What is tied to the success of a task is sent in any case: that task has succeeded.

        Raises:
            NotSent: it has none.
        """
        _, _, head = messages[0]
        try:
            for hook in () if head.tied else self._extensions.sending:
                hook(self._connection, head.exchange, head.routing_key, len(messages))
        except QueueFull as full:
            room = full.limit - full.depth
            if room <= 0:
                raise NotSent(Cause.RESOURCES, str(full), reached=False) from None
            return messages[:room]
        return messages

    def _declare(self, channel: Any, messages: Sequence[tuple[int, int, Outgoing]]) -> None:
        known = self._app.amqp.queues
        for name in {message.declare for _, _, message in messages if message.declare}:
            if name in known:
                maybe_declare(known[name], channel)
            elif known.create_missing:
                maybe_declare(self._unlisted[name], channel)

    @cached_property
    def _unlisted(self) -> Any:
        """Make the queues that are in the list of whoever published to them, and in none of this process.

        They are not added to the app's own: a worker that was started without -Q consumes what is there.
        """
        return self._app.amqp.Queues(None)

    def _publish(self, channel: Any, seq: int, note: int, message: Outgoing) -> None:
        parts = _parts(seq, note, message, only_copy=False)
        prepared = channel.prepare_message(message.body, **parts)
        options: dict[str, Any] = {"exchange": message.exchange, "routing_key": message.routing_key}
        if self._confirms is not None:
            options.update(mandatory=True, timeout=ANSWER_TIMEOUT)
            self._confirms.expect(seq)
        channel.basic_publish(prepared, **options)

    def _push(self, channel: Any, messages: Sequence[tuple[int, int, Outgoing]]) -> list[Copy]:
        """Put messages into their queues, but for those that the ledger's next step puts there."""
        copies: list[Copy] = []
        pushes: list[Push] = []
        for seq, note, message in messages:
            parts = _parts(seq, note, message, only_copy=self.is_atomic)
            found = self._pushes(channel, message, parts)
            if found is None:
                self._publish(channel, seq, note, message)
            elif self.is_atomic:
                copies += [_copy_of(seq, note, message)._replace(list=key, payload=it) for key, it in found]
                continue
            pushes += found or []
            copies += [_copy_of(seq, note, message)] * (1 if found is None else len(found))
        if pushes:
            self._broker.push(channel, pushes)
        return copies

    def _pushes(self, channel: Any, message: Outgoing, parts: dict[str, Any]) -> list[Push] | None:
        address = message.exchange, message.routing_key
        try:
            return self._broker.pushes(channel, *address, message.body, parts)
        except Unroutable as error:
            raise NotSent(Cause.UNROUTABLE, str(error), reached=False) from error


def _parts(seq: int, note: int, message: Outgoing, *, only_copy: bool) -> dict[str, Any]:
    """Return the parts that kombu makes a message of.

    Args:
        only_copy: there will never be another; else each is looked up before it runs, by its note.
    """
    properties = dict(message.properties)
    looked_up = {PARK: note} if note > 0 else {} if only_copy else {MARK: 1}
    return {
        "priority": properties.pop("priority", None),
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "headers": {**message.headers, OUTBOX: seq, **looked_up},
        "properties": properties,
    }


def _copy_of(seq: int, note: int, message: Outgoing) -> Copy:
    # Of the only copy that there is, nothing need be remembered.
    return Copy(seq, "" if note else message.mid)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


# --- RabbitMQ ------------------------------------------------------------------------------------------


class _Confirms:
    """Waits for the confirmations of many messages at once.

    kombu's own way waits for each message by itself.
    """

    def __init__(self, connection: Any, channel: Any) -> None:
        self._connection = connection
        self._published = 0
        #: Delivery tag -> number of the message, while nothing is heard of it.
        self._open: dict[int, int] = {}
        self._refused = False
        #: Numbers of what the broker has taken.
        self.confirmed: set[int] = set()
        #: Why the broker takes nothing from publishers at present; empty: it does.
        self.blocked = ""
        connection.connection.on_blocked = self._note_blocked
        connection.connection.on_unblocked = self._note_unblocked
        channel.confirm_select()
        channel.events["basic_ack"].add(self._note_ack)
        channel.events["basic_nack"].add(self._note_nack)

    def expect(self, seq: int) -> None:
        """Expect the confirmation of what is published next."""
        if not self._open:
            self.confirmed = set()
        self._published += 1
        self._open[self._published] = seq

    def wait(self, seconds: float) -> None:
        """Wait until everything is confirmed.

        Raises:
            NotSent: not within ``seconds``, or the broker refuses, or takes nothing at present.
        """
        until = time.monotonic() + seconds
        while self._open and not self.blocked:
            try:
                self._connection.drain_events(timeout=max(0.001, until - time.monotonic()))
            except TimeoutError:
                raise NotSent(Cause.NO_CONFIRMATION, f"none within {seconds:.0f} seconds") from None
        if self.blocked:
            raise NotSent(Cause.RESOURCES, self.blocked)
        if self._refused:
            raise NotSent(Cause.RESOURCES, "the broker refused the message: its queue is full", reached=False)

    def wait_until_unblocked(self) -> None:
        """Look whether the broker takes messages again.

        Raises:
            NotSent: it does not.
        """
        with suppress(TimeoutError):
            while self.blocked:
                self._connection.drain_events(timeout=0.05)
        if self.blocked:
            raise NotSent(Cause.RESOURCES, self.blocked, reached=False)

    def _note_blocked(self, reason: str) -> None:
        self.blocked = reason or "the broker blocks publishers"

    def _note_unblocked(self) -> None:
        self.blocked = ""

    def _note_ack(self, tag: int, multiple: bool) -> None:
        self.confirmed |= self._take_confirmed(tag, multiple)

    def _note_nack(self, tag: int, multiple: bool) -> None:
        self._refused = True
        self._take_confirmed(tag, multiple)

    def _take_confirmed(self, tag: int, multiple: bool) -> set[int]:
        tags = [each for each in self._open if each <= tag] if multiple else [tag]
        return {self._open.pop(each) for each in tags if each in self._open}
