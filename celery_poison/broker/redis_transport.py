"""Receiving from a Redis broker without a moment in which a message belongs to nobody.

kombu pops a message and registers it as unacknowledged in a second step; a worker killed in between
loses it. Here both happen in one script, under a delivery tag that names the worker, so that

* no message is ever in neither place, and ownership is recorded with the entry itself (EMS-6);
* a restored message gets a fresh tag, and a late acknowledgement by a worker that lost it cannot
  remove the entry of its new owner (EMS-8);
* the entry names the queue that the message came from: whoever restores it, kombu included, puts it
  back there and nowhere else.

An idle worker waits on the queue that is next in turn, and looks at its other queues and priorities
ten times a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import count
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from kombu.transport import redis, virtual
from kombu.transport.redis import Empty
from kombu.utils.json import dumps, loads
from redis.exceptions import NoScriptError

from celery_poison.broker.sealed import Sealed

logger = get_logger(__name__)

#: Seconds an idle worker waits on one queue before it looks at the others.
PATIENCE = 0.1

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


def arriving_key(boot_id: str, queue: str) -> str:
    """Return the list that holds a message between its queue and its registration."""
    return f"poison.arriving.{boot_id}.{queue}"


class RedisMessage(virtual.Message, Sealed):
    """A message from Redis, tagged as its receiver's own."""

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        tag, self.registered = channel.take_tag()
        payload["properties"]["delivery_tag"] = tag
        super().__init__(payload, channel=channel, **kwargs)
        self.queue_name = channel.arriving_from

    def reject(self, requeue: bool = False) -> None:
        """As in kombu; a guarded message that is put back goes to the front of its queue (WAS-3)."""
        if requeue and self.to_front and not self.acknowledged:
            self.channel.qos.put_first(self.delivery_tag)
            self._state = "REQUEUED"
        else:
            super().reject(requeue=requeue)


class OwnedQoS(redis.QoS):
    """Unacked entries that name the queue they came from."""

    def append(self, message: Any, delivery_tag: str) -> None:
        if not message.registered:
            entry = dumps([message._raw, "", message.queue_name])
            with self.pipe_or_acquire() as pipe:
                pipe.zadd(self.unacked_index_key, {delivery_tag: time()})
                pipe.hset(self.unacked_key, delivery_tag, entry)
                pipe.execute()
        virtual.QoS.append(self, message, delivery_tag)

    def put_first(self, delivery_tag: str) -> None:
        """Put an unacked message back to the front of its queue."""
        self.restore_by_tag(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)


#: kombu's own channel at run time is the class this is mixed into.
_Base: Any = redis.Channel if TYPE_CHECKING else object


class OwnedChannel(_Base):
    """Mixed into kombu's Redis channel; the class of each worker process carries its boot id."""

    boot_id: str
    numbers: Iterator[int]

    QoS = OwnedQoS
    Message = RedisMessage
    arriving_from: str | None = None
    _fetched_tag: str | None = None
    _fetches = False
    _unacked_consumers = False
    _tag_in_flight = ""
    _script: Any = None
    _waits = True
    _found = False

    def take_tag(self) -> tuple[str, bool]:
        """Return the tag for a message that arrives, and whether it is registered already."""
        tag, self._fetched_tag = self._fetched_tag, None
        return (tag, True) if tag else (self._next_tag(), False)

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        self._unacked_consumers = self._unacked_consumers or bool(no_ack)
        result = super().basic_consume(queue, no_ack, *args, **kwargs)
        callbacks = self.connection._callbacks
        callbacks[queue] = self._named(queue, callbacks[queue])
        return result

    def _named(self, queue: str, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def receive(raw: Any) -> Any:
            self.arriving_from = queue
            return callback(raw)

        return receive

    def basic_get(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        self.arriving_from = queue
        return super().basic_get(queue, *args, **kwargs)

    def _brpop_start(self, timeout: float | None = None) -> None:
        self._fetches = not self._unacked_consumers and self.ack_emulation and self._is_able
        if not self._fetches:
            super()._brpop_start(timeout)
            return
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        connection = self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        self._tag_in_flight = self._next_tag()
        wait, fetch = self._commands(queues)
        # After a message there is probably another: it is fetched without waiting for it first.
        self._waits = not self._found
        connection.send_packed_command(connection.pack_commands([wait, fetch] if self._waits else [fetch]))

    def _commands(self, queues: list[str]) -> tuple[list[Any], list[Any]]:
        prefix = self.global_keyprefix or ""
        first = prefix + queues[0]
        arriving = prefix + arriving_key(self.boot_id, queues[0])
        rows = [(prefix + self._q_for_pri(q, p), q) for p in self.priority_steps for q in queues]
        fixed = [arriving, prefix + self.unacked_key, prefix + self.unacked_index_key]
        keys = fixed + [key for key, _ in rows]
        words = [self._tag_in_flight, time(), queues[0], *[queue for _, queue in rows]]
        wait = ["BLMOVE", first, arriving, "RIGHT", "LEFT", PATIENCE]
        return wait, ["EVALSHA", self._script, len(keys), *keys, *words]

    def _brpop_read(self, **options: Any) -> Any:
        if not self._fetches:
            return super()._brpop_read(**options)
        try:
            queue, item = self._fetched()
            self._queue_cycle.rotate(queue)
            self._fetched_tag = self._tag_in_flight
            self.connection._deliver(loads(item), queue)
            return True
        finally:
            self._in_poll = None
            if flush := getattr(super(), "_flush_brpop_reauth", None):  # kombu 5.7: streaming credentials
                flush()

    def _fetched(self) -> tuple[str, str]:
        connection = self.client.connection
        try:
            if self._waits:
                with suppress(self.ResponseError):  # the second reply is on its way all the same
                    self.client.parse_response(connection, "BLMOVE")
            reply = self.client.parse_response(connection, "EVALSHA")
        except NoScriptError:  # somebody flushed the scripts
            self._load_script()
            raise Empty from None
        except self.connection_errors:
            connection.disconnect()
            raise
        finally:
            self._found = False
        if not reply:
            raise Empty
        self._found = True
        queue, item = reply
        return _text(queue), _text(item)

    @cached_property
    def _is_able(self) -> bool:
        with self.conn_or_acquire() as client:
            able = _is_able(client)
        if able:
            self._load_script()
        return able

    def _load_script(self) -> None:
        with self.conn_or_acquire() as client:
            self._script = client.execute_command("SCRIPT LOAD", _FETCH)

    def _next_tag(self) -> str:
        return f"{self.boot_id}-{next(self.numbers)}"


def owned_channel(base: type[redis.Channel], boot_id: str) -> type[redis.Channel]:
    """Return the channel class of one worker process."""
    return type("OwnedChannel", (OwnedChannel, base), {"boot_id": boot_id, "numbers": count(1)})


def _text(word: Any) -> str:
    return word.decode("utf-8") if isinstance(word, bytes) else word


def _is_able(client: Any) -> bool:
    """Whether the broker's Redis knows BLMOVE (6.2) and lets this user run scripts."""
    try:
        client.execute_command("EVAL", "return redis.call('EXISTS', 'poison.probe')", 0)
        version = client.info("server")["redis_version"]
        return tuple(int(part) for part in version.split(".")[:2]) >= (6, 2)
    except Exception as error:
        logger.warning(
            "celery_poison: the broker's Redis does not allow receiving in one step (%s): a worker that is"
            " killed while it receives may lose that message, as with plain Celery",
            error,
        )
        return False
