"""The unacknowledged messages on a Redis broker, and the one atomic step by which each goes back.

kombu restores a message in a transaction that watches the hash of all unacknowledged messages: any other
worker's delivery or acknowledgement makes it start again, under load without end. Here a script looks at
the one entry only, and moves it if it is still the one that was read (EMS-6). Messages that are on their way
from a queue to their receiver's unacknowledged ones, and that no process has seen, go back too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from time import time
from typing import Any, NamedTuple
from uuid import uuid4

from celery.utils.log import get_logger
from redis import Redis
from redis.exceptions import ConnectionError, NoPermissionError, TimeoutError

from celery_poison.broker.redis.client import client_of
from celery_poison.broker.tags import number_of, owner_of
from celery_poison.headers import MID, identify, is_unique

logger = get_logger("celery_poison")

#: Messages that are read, and put back, in one exchange with Redis.
BATCH = 100
#: Bytes of them at most, so that large messages do not fill the memory of the process that puts them back.
BATCH_BYTES = 8_000_000

#: Seconds for which it is remembered what came back from a dead worker.
MEMORY = 6 * 3600

#: Puts one message back. KEYS: unacked, index, returned, a queue for each copy.
#: ARGV: tag, the entry as it was read, RPUSH or LPUSH, what to remember ('' for nothing), for how many
#: seconds, then a payload for each queue.
#: RETURNS 1 (moved) | 0 (acknowledged, or moved by another process meanwhile).
#: It pushes first: a push that Redis refuses ends the script and leaves the message where it was.
_PUT_BACK = """
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if entry and entry ~= ARGV[2] then return 0 end
if entry then
  for i = 4, #KEYS do redis.call(ARGV[3], KEYS[i], ARGV[i + 2]) end
  redis.call('HDEL', KEYS[1], ARGV[1])
  if ARGV[4] ~= '' then
    redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
    redis.call('EXPIRE', KEYS[3], ARGV[5])
  end
end
redis.call('ZREM', KEYS[2], ARGV[1])
return entry and 1 or 0
"""

#: Tags of unreadable entries that were complained of.
_complained_of: set[str] = set()


def returned_key(boot_id: str) -> str:
    """Return the hash that remembers what came back from a dead worker: tag → mid and queues, as JSON."""
    return f"poison.returned.{boot_id}"


class _Move(NamedTuple):
    tag: str
    entry: bytes | str
    keys: list[str]
    payloads: list[str | bytes]
    note: str


class Unacked:
    """The unacknowledged messages that a kombu Redis channel sees.

    Args:
        channel: its options say how the keys are called.
        client: writes keys in full, as kombu's own does not; None: one on the channel's connections.
    """

    def __init__(self, channel: Any, client: Redis | None = None) -> None:
        self._channel = channel
        self.client = client or client_of(channel)
        self.prefix = channel.global_keyprefix or ""
        self.key = self.prefix + channel.unacked_key
        self.index = self.prefix + channel.unacked_index_key

    def tags(self, match: str = "*") -> set[str]:
        """Return the tags of all messages, of every receiver."""
        return {text(tag) for tag, _ in self.client.zscan_iter(self.index, match=match, count=1000)}

    def tags_of(self, boot_id: str) -> list[str]:
        """Return the tags of all messages that ``boot_id`` received, the newest first."""
        return sorted(self.tags(f"{boot_id}-*"), key=number_of, reverse=True)

    def expired(self, before: float) -> list[str]:
        """Return the tags whose score is older than ``before`` (seconds since 1970), the newest first."""
        found: Any = self.client.zrange(self.index, before, 0, desc=True, byscore=True)
        return [text(tag) for tag in found]

    def renew(self, tags: Sequence[str]) -> None:
        """Let the visibility timeout of messages begin anew; what is gone stays gone.

        Others compare with clocks of their own. So the later of this machine's time and Redis' is taken:
        a clock that is behind must not give live work away.
        """
        client = self.client
        answer: Any = client.time()
        now = max(time(), answer[0] + answer[1] / 1e6)
        for start in range(0, len(tags), 1000):
            client.zadd(self.index, dict.fromkeys(tags[start : start + 1000], now), xx=True)

    def restore(self, tags: Iterable[str], *, leftmost: bool = False, record: bool = False) -> None:
        """Put messages back into their queues, each in one step and under a fresh tag.

        The one put back last is delivered first: name the oldest last. What is killed in between can be
        called again. What cannot be read, or placed, stays where it is, and the log says so.

        Args:
            leftmost: behind everything that waits, instead of before it.
            record: remember it, for the monitor that recovers from the death of their owner.

        Raises:
            redis.exceptions.RedisError: Redis is away, or takes no messages at the moment.
        """
        routes: dict[tuple[str, str], list[str]] = {}
        for batch in self._batches(tags):
            moves = []
            for tag, entry in zip(batch, self.client.hmget(self.key, batch), strict=True):
                try:
                    moves.append(self._move(tag, entry, routes))
                except (ConnectionError, TimeoutError, OSError):
                    raise
                except Exception as error:  # whatever a foreign entry is made of
                    _complain(tag, error)
            self._execute(moves, "LPUSH" if leftmost else "RPUSH", record)

    def returned(self, boot_id: str) -> list[tuple[str | None, list[str]]]:
        """Return mid and queues of every message that came back from ``boot_id``, by any process."""
        rows: Any = self.client.hvals(self.prefix + returned_key(boot_id))
        return [tuple(json.loads(row)) for row in rows]

    def _batches(self, tags: Iterable[str]) -> Iterator[list[str]]:
        rest = iter(tags)
        while some := list(islice(rest, BATCH)):
            with self.client.pipeline(transaction=False) as pipe:
                for tag in some:
                    pipe.hstrlen(self.key, tag)
                sizes = pipe.execute()
            batch: list[str] = []
            weight = 0
            for tag, size in zip(some, sizes, strict=True):
                if batch and weight + size > BATCH_BYTES:
                    yield batch
                    batch, weight = [], 0
                batch.append(tag)
                weight += size
            yield batch

    def _move(self, tag: str, entry: bytes | str | None, routes: dict[tuple[str, str], list[str]]) -> _Move:
        if entry is None:
            return _Move(tag, b"", [], [], "")  # the index alone: it forgets the tag
        try:
            message, exchange, routing_key = json.loads(text(entry))
            properties, headers = message["properties"], message.get("headers")
            info = properties.get("delivery_info")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            item, queue = _item_of(entry)
            return _Move(tag, entry, [self.prefix + queue], [item], json.dumps([None, [queue]]))
        if mid := _mid(headers, properties.get("delivery_tag")):
            headers[MID] = mid  # the tag by which it is known goes now
        for flagged in (headers, info):
            if isinstance(flagged, dict):
                flagged["redelivered"] = True
        queues = routes.get((exchange, routing_key))
        if queues is None:
            queues = routes[exchange, routing_key] = self._queues(exchange, routing_key)
        priority = self._priority_of(message)
        keys = [self.prefix + self._channel._q_for_pri(queue, priority) for queue in queues]
        payloads: list[str | bytes] = []
        for _ in queues:
            properties["delivery_tag"] = str(uuid4())
            payloads.append(json.dumps(message))
        return _Move(tag, entry, keys, payloads, json.dumps([mid, queues]))

    def _priority_of(self, message: Any) -> Any:
        try:
            return self._channel._get_message_priority(message, reverse=False)
        except OverflowError:  # infinite, which is JSON to Python
            return self._channel.default_priority

    def _queues(self, exchange: str, routing_key: str) -> list[str]:
        queues = [queue for queue in self._channel._lookup(exchange, routing_key) if queue]
        if not queues:
            raise LookupError(f"no queue is bound to exchange {exchange!r} with key {routing_key!r}")
        return queues

    def _execute(self, moves: Sequence[_Move], push: str, record: bool) -> None:
        with self.client.pipeline(transaction=False) as pipe:
            for move in moves:
                returned, note = self._memory(move, record)
                keys = [self.key, self.index, returned, *move.keys]
                words = [move.tag, move.entry, push, note, MEMORY, *move.payloads]
                pipe.eval(_PUT_BACK, len(keys), *keys, *words)
            replies = pipe.execute(raise_on_error=False)
        for move, reply in zip(moves, replies, strict=True):
            if isinstance(reply, NoPermissionError):
                self._by_watching(move, push, record)
            elif isinstance(reply, Exception):
                if "WRONGTYPE" not in str(reply):
                    raise reply  # out of memory, a replica: no fault of this message
                _complain(move.tag, reply)

    def _memory(self, move: _Move, record: bool) -> tuple[str, str]:
        owner = owner_of(move.tag) if record else None
        return self.prefix + returned_key(owner or ""), move.note if owner else ""

    def _by_watching(self, move: _Move, push: str, record: bool) -> None:
        """kombu's way, where scripts are not allowed."""

        returned, note = self._memory(move, record)

        def step(pipe: Any) -> None:
            entry = pipe.hget(self.key, move.tag)
            pipe.multi()
            if entry is not None and entry != move.entry:
                return
            for key, payload in zip(move.keys, move.payloads, strict=True):
                pipe.execute_command(push, key, payload)
            pipe.hdel(self.key, move.tag)
            pipe.zrem(self.index, move.tag)
            if note and entry is not None:
                pipe.hset(returned, move.tag, note)
                pipe.expire(returned, MEMORY)

        self.client.transaction(step, self.key)


def text(word: Any) -> str:
    """Return an answer of Redis as a string."""
    return word.decode("utf-8") if isinstance(word, bytes) else word


def _item_of(entry: bytes | str) -> tuple[bytes, str]:
    """Return item and queue of an entry around something that is no message: it goes back as it came.

    Raises:
        ValueError: the entry does not tell its queue.
    """
    whole = entry if isinstance(entry, bytes) else entry.encode()
    item, mark, queue = whole[1:-1].rpartition(b', "", ')
    name = json.loads(queue) if mark else None
    if not isinstance(name, str):
        raise ValueError("its queue is not known")
    return item, name


def _mid(headers: Any, tag: Any) -> str | None:
    try:
        if not (
            "id" in headers and "task" in headers
        ):  # protocol 1, or no task: only its body could tell more
            return headers[MID] if isinstance(headers.get(MID), str) else None
        mid = identify(headers, tag)
        return mid if is_unique(mid) else None
    except Exception:  # whatever its publisher has written there: it must go back all the same
        return None  # not a task message of ours: nothing on record depends on it


def _complain(tag: str, error: Exception) -> None:
    if tag not in _complained_of:
        _complained_of.add(tag)
        sentence = "celery_poison: unacknowledged message %s cannot be put back and stays where it is: %r"
        logger.error(sentence, tag, error)


def arriving_key(boot_id: str, queue: str) -> str:
    """Return the list that holds a message between its queue and its registration."""
    return f"poison.arriving.{boot_id}.{queue}"


def _register(prefix: str, boot_id: str) -> str:
    return f"{prefix}poison.arriving.{boot_id}"


def announce(channel: Any, boot_id: str, queue: str) -> None:
    """Write down that ``boot_id`` is about to receive from ``queue``, for the processes that outlive it."""
    client_of(channel).sadd(_register(channel.global_keyprefix or "", boot_id), queue)


def put_back_arriving(unacked: Unacked, boot_id: str, queues: Iterable[str] = ()) -> Counter[str]:
    """Put back what ``boot_id`` was receiving, in its order and unchanged; return the number by queue.

    Args:
        unacked: of the broker.
        queues: further queues than the announced ones.
    """
    client, prefix = unacked.client, unacked.prefix
    announced: Any = client.smembers(_register(prefix, boot_id))
    moved: Counter[str] = Counter()
    for queue in {text(name) for name in announced}.union(queues):
        source = prefix + arriving_key(boot_id, queue)
        while client.llen(source) and client.lmove(source, prefix + queue, "LEFT", "RIGHT"):
            moved[queue] += 1
    client.delete(_register(prefix, boot_id))
    return moved
