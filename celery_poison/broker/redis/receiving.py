"""Receiving from a Redis broker without a moment in which a message has no owner.

kombu pops a message and registers it as unacknowledged in a second step; a worker that ends in between
loses it (https://github.com/celery/celery/issues/4354). Here both happen in one script, under a delivery
tag that names the worker, so that

* no message is ever in neither place, and ownership is recorded with the entry itself (EMS-6);
* a restored message gets a fresh tag, and a late acknowledgement by a worker that lost it cannot
  remove the entry of its new owner (EMS-8);
* the entry names the queue that the message came from: what restores it, kombu included, puts it
  back there and nowhere else.

An idle worker waits on the queue that is next in turn, and looks at its other queues and priorities
ten times a second while they are in use, else twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from itertools import count
from time import monotonic, time
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.utils.log import get_logger
from kombu.transport import redis, virtual
from kombu.transport.redis import Empty, Mutex, MutexHeld
from kombu.utils.json import dumps, loads
from redis.exceptions import NoScriptError

from celery_poison.broker.books import Books
from celery_poison.broker.port import OwnerIsAlive
from celery_poison.broker.redis.book import Book, book_of
from celery_poison.broker.redis.items import origin_of, tagged, wrapped
from celery_poison.broker.redis.unacked import Unacked, announce, arriving_key, text
from celery_poison.broker.sealed import Sealed
from celery_poison.broker.tags import owner_of

logger = get_logger("celery_poison")

#: Seconds an idle worker waits on one queue before it looks at the others. While nothing comes, each wait is
#: twice as long as the last, up to :data:`LONGEST`, unless another than that one had something lately.
PATIENCE, LONGEST = 0.1, 0.5
#: Seconds for which a list that had something counts as in use.
IN_USE = 300.0

#: Of delivery tags: no two in one process are the same, whatever they came by.
_numbers = count(1)

#: Pops one message and registers it. KEYS: arriving, unacked, index, queues by priority.
#: ARGV: tag, time, the queue that arrived, then the queue name of each further key.
_FETCH = """
local item, queue = redis.call('RPOP', KEYS[1]), ARGV[3]
local i = 4
while not item and i <= #KEYS do
  item, queue, i = redis.call('RPOP', KEYS[i]), ARGV[i], i + 1
end
if not item then return false end
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], '[' .. item .. ', "", ' .. cjson.encode(queue) .. ']')
return {queue, item}
"""

#: The same after a wait: mostly nothing is there, which one command tells of all queues, if not too many.
_FETCH_IF_ANY = (
    "if #KEYS < 4000 and redis.call('EXISTS', KEYS[1], unpack(KEYS, 4)) == 0 then return false end" + _FETCH
)


class Arrival(NamedTuple):
    """An item that Redis has just given to a channel: ``item`` as it lay in the queue.

    kombu delivers it to the consumer that came last to its queue, which may be another channel of the
    connection: a project may have consumers of its own beside the tasks.
    """

    tag: str
    item: Any
    channel: OwnedChannel


class RedisMessage(virtual.Message, Sealed):
    """A message from Redis, tagged as its receiver's own.

    A message pushed there that kombu could not read becomes one that cannot be decoded: with the whole
    item as its body, and what is wrong with it among its errors.
    """

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        arrival, channel.connection.arrival = channel.connection.arrival, None
        self.registered = arrival is not None  # as unacknowledged, already
        tag = arrival.tag if arrival else channel.next_tag()
        if arrival and arrival.channel is not channel:  # another consumer of the connection asked for it
            channel.book.take(tag, channel)
        self.queue_name = channel.arriving_from
        self.origin = origin_of(payload)
        try:
            super().__init__(tagged(payload, tag), channel=channel, **kwargs)
        except Exception as error:
            super().__init__(wrapped(arrival.item if arrival else payload, tag), channel=channel)
            self.errors = [(type(error), error, error.__traceback__)]

    #: It was given to the pool, or is about to be.
    is_handed = False

    @property
    def is_mine(self) -> bool:
        return bool(self.channel.book.holds(self.delivery_tag))

    def mark_done(self) -> None:
        self.went_back = self.channel.book.note_done(self.delivery_tag)

    def mark_stored(self) -> None:
        self.channel.book.note_moved(self.delivery_tag)

    def reject(self, requeue: bool = False) -> None:
        """As in kombu; a guarded message that is put back goes to the front of its queue (WAS-3)."""
        if requeue and self.to_front and not self.acknowledged:
            self.channel.qos.put_first(self.delivery_tag)
            self._state = "REQUEUED"
        else:
            super().reject(requeue=requeue)


class OwnedQoS(redis.QoS):
    """kombu's count of what a channel may prefetch; what becomes of the messages is the book's affair."""

    def append(self, message: Any, delivery_tag: str) -> None:
        if not message.registered:
            self.channel.book.take(delivery_tag, self.channel)
            # As in its queue, where every publish has a tag of its own.
            properties = {**message._raw["properties"], "delivery_tag": message.origin or delivery_tag}
            entry = dumps([{**message._raw, "properties": properties}, "", message.queue_name])
            with self.pipe_or_acquire() as pipe:
                pipe.zadd(self.unacked_index_key, {delivery_tag: time()})
                pipe.hset(self.unacked_key, delivery_tag, entry)
                pipe.execute()
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        self.channel.book.acknowledge(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self.channel.book.put_back(delivery_tag, leftmost=True)
        else:
            self.channel.book.acknowledge(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def put_first(self, delivery_tag: str) -> None:
        """Put an unacked message back to the front of its queue."""
        self.channel.book.put_back(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """As in kombu (shutdown, lost connection), but for what has begun; and it cannot fail."""
        self.channel.leave()
        self._delivered.clear()

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:
        """As in kombu, but what a living worker holds stays with it, however long that takes (TP1-8).

        https://github.com/celery/celery/issues/5935
        """
        self._vrestore_count += 1
        if (self._vrestore_count - 1) % (interval or 1):
            return
        with self.channel.conn_or_acquire() as client, suppress(MutexHeld):
            before = time() - self.visibility_timeout
            with Mutex(client, self.unacked_mutex_key, self.unacked_mutex_expire):
                unacked, mine = Unacked(self.channel), self.channel.book.tags()
                is_alive = cache(self.channel.owner_is_alive)

                def is_lost(tag: str) -> bool:
                    owner = owner_of(tag)
                    if owner is None:
                        return True  # plain kombu gave the tag: it knows no owners
                    if owner == self.channel.boot_id:
                        return tag not in mine  # its delivery was lost with a connection
                    return is_alive(owner) is False

                lost = [tag for tag in unacked.expired(before) if is_lost(tag)]
                unacked.restore(lost[start : start + num] if num else lost, record=True)


#: kombu's own channel at run time is the class this is mixed into.
_Base: Any = redis.Channel if TYPE_CHECKING else object


class OwnedChannel(_Base):
    """Mixed into kombu's Redis channel; carries the boot id that its worker had when it opened.

    Attributes:
        heard_at: when a poll was answered last, by a message or by nothing, by the monotonic clock; 0
            before the first.
        at_hand: tag of what is being delivered at this moment; empty: nothing.
    """

    boot_id: str
    new_boot_id: Callable[[], str]
    books: Books
    owner_is_alive: OwnerIsAlive

    QoS = OwnedQoS
    Message = RedisMessage
    closed: bool
    _in_poll: Any
    _consumers: set[Any]
    _fanout_queues: dict[str, Any]
    _tag_to_queue: dict[str, str]
    heard_at = 0.0
    at_hand = ""
    arriving_from: str | None = None
    _fetches = False
    _receives = False
    _tag_in_flight = ""
    _scripts: Sequence[Any] = ()
    _waits = True
    _found = False
    #: Seconds of the next wait, and until when none is longer than the shortest.
    _patience = PATIENCE
    _in_use_until = 0.0
    #: When it was last seen full.
    _full_at = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.boot_id = self.new_boot_id()
        self._announced: set[str] = set()
        #: Queues that are consumed here without acknowledgements.
        self._without_acks: set[str] = set()
        super().__init__(*args, **kwargs)

    @cached_property
    def book(self) -> Book:
        """What this process holds of this broker."""
        return book_of(self.books, self)

    @property
    def is_full(self) -> bool:
        """Whether it polls for no more before something is acknowledged; from any thread."""
        return not self.qos.can_consume()

    @property
    def unanswered_for(self) -> float:
        """Seconds for which a poll has had no answer, else 0; from any thread.

        While the prefetch is used up kombu leaves an answer unread: that time is not the broker's.
        """
        if self.is_full:
            self._full_at = monotonic()
        if not (self._fetches and self._in_poll):
            return 0.0
        return monotonic() - max(self._brpop_sent_at, self._full_at)

    def close(self) -> None:
        """As in kombu, but a connection that is lost keeps nothing from being closed."""
        if not self.closed:
            self._finish_receiving()
            self.leave()
        try:
            super().close()
        except self.connection_errors:
            # kombu stopped at what Redis did not hear: consumers and queues end with the connection.
            self.closed, self._consumers, self._fanout_queues = False, set(), {}
            with suppress(*self.connection_errors):
                super().close()

    def finish_poll(self, patience: float) -> None:
        """Receive what was asked for already, if it comes within so many seconds."""
        with suppress(*self.connection_errors):
            if self._in_poll and self._in_poll.can_read(timeout=patience):
                self._finish_receiving()

    def _finish_receiving(self) -> None:
        if self._in_poll:
            with suppress(Empty, self.ResponseError, *self.connection_errors):
                self._brpop_read()
        self._in_poll = None

    def leave(self) -> None:
        """Put back what this channel received and no process has begun."""
        if self._receives and self.do_restore:
            self._receives = False
            self.books.before_return(self)
            self.book.leave(self)

    def _connparams(self, asynchronous: bool = False) -> Any:
        # kombu fails here with an AttributeError, which ends the worker, when it closes a lost connection:
        # https://github.com/celery/kombu/issues/582
        if self.connection is None or self.connection.client is None:
            raise ConnectionError("this channel's connection was closed")
        return super()._connparams(asynchronous=asynchronous)

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        if no_ack:
            self._without_acks.add(queue)
        else:
            self._without_acks.discard(queue)
            self._receives = bool(self.book)
        result = super().basic_consume(queue, no_ack, *args, **kwargs)
        callbacks = self.connection._callbacks
        callbacks[queue] = self._named(queue, callbacks[queue], no_ack)
        return result

    def _basic_cancel(self, consumer_tag: str) -> Any:
        """As in kombu, but what comes of this queue after it, and was asked for before it, goes back.

        kombu hands that to any channel of the connection, which would take it for a message of another queue.
        """
        queue = self._tag_to_queue.get(consumer_tag)
        result = super()._basic_cancel(consumer_tag)
        if queue is not None and queue not in self._without_acks and not self.closed:
            self.connection._callbacks[queue] = self._named(queue, self._return_at_once)
        return result

    def _return_at_once(self, raw: Any) -> None:
        message = self.Message(raw, channel=self)
        self.qos.append(message, message.delivery_tag)
        self.qos.put_first(message.delivery_tag)

    def _named(
        self, queue: str, callback: Callable[[Any], Any], no_ack: bool = False
    ) -> Callable[[Any], Any]:
        def receive(raw: Any) -> Any:
            self.arriving_from = queue
            if no_ack and (arrival := self.connection.arrival) is not None:
                self.book.acknowledge(arrival.tag)  # the process that takes it will not
            return callback(raw)

        return receive

    def basic_get(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        self.arriving_from, self._receives = queue, True
        return super().basic_get(queue, *args, **kwargs)

    def _brpop_start(self, *timeout: Any, **options: Any) -> None:
        # Celery's mingle waits on the same channel for its answers, and then never again.
        is_acked = self._without_acks.isdisjoint(self.active_queues)
        self._fetches = is_acked and self.ack_emulation and self._is_able
        if not self._fetches:
            # Handed on as it came: kombu 5.5 takes None for "wait for ever", 5.6 for its default of a second.
            super()._brpop_start(*timeout, **options)
            return
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        if queues[0] not in self._announced:
            announce(self, self.boot_id, queues[0])
            self._announced.add(queues[0])
        if self._tag_in_flight:  # its answer was lost, kombu has connected anew without a word
            self.book.lost_sight_of(self._tag_in_flight)
        self._brpop_sent_at = monotonic()
        connection = self._in_poll = self.client.connection
        self._tag_in_flight = self.next_tag()
        self.book.take(self._tag_in_flight, self)
        # After a message there is probably another: it is fetched without waiting for it first.
        self._waits = not self._found
        wait, fetch = self._commands(queues)
        connection.send_packed_command(connection.pack_commands([wait, fetch] if self._waits else [fetch]))

    def _commands(self, queues: list[str]) -> tuple[list[Any], list[Any]]:
        prefix = self.global_keyprefix or ""
        first = prefix + queues[0]
        arriving = prefix + arriving_key(self.boot_id, queues[0])
        rows = [(prefix + self._q_for_pri(q, p), q) for p in self.priority_steps for q in queues]
        fixed = [arriving, prefix + self.unacked_key, prefix + self.unacked_index_key]
        keys = fixed + [key for key, _ in rows]
        words = [self._tag_in_flight, time(), queues[0], *[queue for _, queue in rows]]
        wait = ["BLMOVE", first, arriving, "RIGHT", "LEFT", self._patience]
        return wait, ["EVALSHA", self._scripts[self._waits], len(keys), *keys, *words]

    def _brpop_read(self, **options: Any) -> Any:
        self.heard_at = monotonic()
        if not self._fetches:
            return super()._brpop_read(**options)
        transport = self.connection
        try:
            queue, item = self._fetched()
            self._queue_cycle.rotate(queue)
            tag, self._tag_in_flight, payload = self._tag_in_flight, "", None
            self.at_hand = tag
            if not self.book.holds(tag):  # it was given back while the event loop stood
                self.book.put_back(tag)
                raise Empty
            transport.arrival = Arrival(tag, item, self)
            with suppress(Exception):  # its receiver says what is wrong with it
                payload = loads(item)
            transport._deliver(payload, queue)
            return True
        finally:
            self._in_poll = transport.arrival = None
            self.at_hand = ""
            if flush := getattr(super(), "_flush_brpop_reauth", None):  # kombu 5.7: streaming credentials
                flush()

    def _fetched(self) -> tuple[str, Any]:
        connection, moved = self.client.connection, None
        try:
            if self._waits:
                with suppress(self.ResponseError):  # the second reply is on its way all the same
                    moved = self.client.parse_response(connection, "BLMOVE")
            reply = self.client.parse_response(connection, "EVALSHA")
        except NoScriptError:  # Redis has lost its scripts
            self._nothing_came()
            self._load_script()
            raise Empty from None
        except self.connection_errors:
            connection.disconnect()
            raise
        finally:
            self._found = False
        if not reply:
            self._nothing_came()
            raise Empty
        self._found, self._patience = True, PATIENCE
        if self._waits and moved is None:
            self._in_use_until = monotonic() + IN_USE
        queue, item = reply
        return text(queue), item

    def _nothing_came(self) -> None:
        if self._waits and monotonic() >= self._in_use_until:
            self._patience = min(LONGEST, 2 * self._patience)
        self.book.nothing_came(self._tag_in_flight)
        self._tag_in_flight = ""

    @cached_property
    def _is_able(self) -> bool:
        """Whether the broker's Redis knows BLMOVE (6.2) and lets this user run scripts."""
        try:
            with self.conn_or_acquire() as client:
                client.execute_command("EVAL", "return redis.call('EXISTS', 'poison.probe')", 0)
                version = client.info("server")["redis_version"]
            self._load_script()
            return tuple(int(part) for part in version.split(".")[:2]) >= (6, 2)
        except Exception as error:
            logger.warning(
                "celery_poison: the broker's Redis does not allow receiving in one step (%s): a worker that"
                " is killed while it receives may lose that message, as with plain Celery",
                error,
            )
            return False

    def _load_script(self) -> None:
        with self.conn_or_acquire() as client:
            texts = _FETCH, _FETCH_IF_ANY
            self._scripts = [client.execute_command("SCRIPT LOAD", text) for text in texts]

    def next_tag(self) -> str:
        return f"{self.boot_id}-{next(_numbers)}"
