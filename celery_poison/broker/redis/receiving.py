"""Receiving from a Redis broker without a moment in which a message has no owner.

kombu pops a message and registers it as unacknowledged in a second step; a worker that ends in between
loses it (https://github.com/celery/celery/issues/4354). Here both happen in one script, under a delivery
tag that names the worker, so that

* no message is ever in neither place, and ownership is recorded with the entry itself (EMS-6);
* a restored message gets a fresh tag, and a late acknowledgement by a worker that lost it cannot
  remove the entry of its new owner (EMS-8);
* the entry names the queue that the message came from: what restores it, kombu included, puts it
  back there and nowhere else.

An idle worker waits on the queue that is next in turn, and Redis says what comes into its other queues and
priorities (:mod:`celery_poison.broker.redis.tracking`). Where Redis does not, the worker looks at them ten
times a second while they are in use, else once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import count
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from kombu.transport import redis
from kombu.transport.redis import Empty
from kombu.utils.json import loads
from redis.exceptions import NoScriptError

from celery_poison.broker.books import Books
from celery_poison.broker.port import OwnerIsAlive
from celery_poison.broker.redis.book import Book, book_of
from celery_poison.broker.redis.delivered import Arrival, OwnedQoS, RedisMessage
from celery_poison.broker.redis.tracking import Tracking
from celery_poison.broker.redis.unacked import announce, arriving_key, text

logger = get_logger("celery_poison")

#: Seconds an idle worker waits on one queue before it looks at the others. While nothing comes, each wait is
#: twice as long as the last, up to :data:`LONGEST`, unless another than that one had something lately.
PATIENCE, LONGEST = 0.1, 1.0
#: Seconds for which nothing that has come by a poll can have been forgotten.
A_MOMENT = 10.0
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

#: Keys of a script that one command in it can be given.
MOST_KEYS = 4000
#: The same after a wait: mostly nothing is there, which one command tells of all queues, if not too many.
_FETCH_IF_ANY = (
    f"if #KEYS < {MOST_KEYS} and redis.call('EXISTS', KEYS[1], unpack(KEYS, 4)) == 0 then return false end"
    + _FETCH
)


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
    #: Of the poll that goes on: the seconds for which it waits, the number of questions before it, its keys.
    _waits_for = 0.0
    _questions = 0
    _keys: Sequence[str] = ()
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
        self._tracking = Tracking(self)
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
        # Nor is the time for which it was asked to wait.
        return max(0.0, monotonic() - max(self._brpop_sent_at + self._waits_for, self._full_at))

    def awaits(self, tag: str) -> bool:
        """Whether ``tag`` is that of a poll that was sent a moment ago; from any thread."""
        return tag == self._tag_in_flight and monotonic() - self._brpop_sent_at < A_MOMENT

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
        finally:
            self._tracking.close()

    def finish_poll(self, patience: float) -> None:
        """Receive what was asked for already, if it comes within so many seconds."""
        self._tracking.end_wait()
        with suppress(*self.connection_errors):
            if self._in_poll and self._in_poll.can_read(timeout=patience):
                self._finish_receiving()

    def _finish_receiving(self) -> None:
        if self._in_poll:
            self._tracking.end_wait()
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
        self._tracking.end_wait()  # it asks for other queues from now on
        result = super().basic_consume(queue, no_ack, *args, **kwargs)
        callbacks = self.connection._callbacks
        callbacks[queue] = self._named(queue, callbacks[queue], no_ack)
        return result

    def _basic_cancel(self, consumer_tag: str) -> Any:
        """As in kombu, but what comes of this queue after it, and was asked for before it, goes back.

        kombu hands that to any channel of the connection, which would take it for a message of another queue.
        """
        queue = self._tag_to_queue.get(consumer_tag)
        self._tracking.end_wait()
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
        connection.send_packed_command(connection.pack_commands(self._commands(connection, queues)))

    def _commands(self, connection: Any, queues: list[str]) -> list[list[Any]]:
        """Return the commands of one poll: questions, perhaps a wait, and a script that fetches."""
        prefix = self.global_keyprefix or ""
        first, arriving = prefix + queues[0], prefix + arriving_key(self.boot_id, queues[0])
        rows = [(prefix + self._q_for_pri(q, p), q) for p in self.priority_steps for q in queues]
        fixed = [arriving, prefix + self.unacked_key, prefix + self.unacked_index_key]
        self._keys = fixed + [key for key, _ in rows]
        # After a message there is probably another: it is fetched without waiting for it first.
        questions = [] if self._found else self._tracking.questions(connection)
        patience: float | None = 0.0
        if not self._found and not questions:
            patience = self._tracking.patience(connection, self._keys[3:], first)
        if patience is None:
            patience = self._patience
        self._questions, self._waits_for = len(questions), patience
        wait = [["BLMOVE", first, arriving, "RIGHT", "LEFT", patience]] if patience else []
        words = [self._tag_in_flight, time(), queues[0], *[queue for _, queue in rows]]
        self._tracking.asks()
        script = self._scripts[not self._found]
        return [*questions, *wait, ["EVALSHA", script, len(self._keys), *self._keys, *words]]

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
        connection, moved, empty = self.client.connection, None, None
        try:
            if self._questions:
                self._tracking.take_replies(*[self._reply(connection) for _ in range(self._questions)])
            if self._waits_for:
                with suppress(self.ResponseError):  # the second reply is on its way all the same
                    moved = self.client.parse_response(connection, "BLMOVE")
            reply = self.client.parse_response(connection, "EVALSHA")
            if not reply and not self._found and len(self._keys) < MOST_KEYS:
                empty = self._keys[3:]
        except NoScriptError:  # Redis has lost its scripts
            self._nothing_came()
            self._load_script()
            raise Empty from None
        except self.connection_errors:
            connection.disconnect()
            raise
        finally:
            self._found = False
            self._tracking.asked(empty)
        if not reply:
            self._nothing_came()
            self._tracking.begin()
            raise Empty
        self._found, self._patience = True, PATIENCE
        if self._waits_for and moved is None:
            self._in_use_until = monotonic() + IN_USE
        queue, item = reply
        return text(queue), item

    def _reply(self, connection: Any) -> Any:
        """Return the next reply; an error is one."""
        try:
            return self.client.parse_response(connection, "CLIENT")
        except self.ResponseError as error:
            return error

    def _nothing_came(self) -> None:
        if self._waits_for and monotonic() >= self._in_use_until:
            self._patience = min(LONGEST, 2 * self._patience, self.books.longest_wait)
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
