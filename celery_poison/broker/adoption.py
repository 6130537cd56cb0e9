"""Takes messages of a dead worker into this process's own hands, instead of putting them back.

Only a Redis broker leaves them to us. Each passes over in one step, from a delivery tag of the dead worker to
one of this process: if this process dies too, whoever recovers from that finds it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from time import time
from typing import Any, NamedTuple

from redis.exceptions import NoPermissionError

from celery_poison.broker.unacked import MEMORY, Unacked, returned_key, text
from celery_poison.headers import mid_of

#: Hands one message over. KEYS: unacked, index, returned.
#: ARGV: tag, the entry as it was read, new tag, new entry, time, what to remember, for how many seconds.
#: RETURNS 1 (handed over) | 0 (acknowledged or moved by somebody else meanwhile).
_TAKE = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[3])
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[6])
redis.call('EXPIRE', KEYS[3], ARGV[7])
return 1
"""


class Taken(NamedTuple):
    """A message in this process's hands: its new tag, its mid, itself as kombu reads it, its own queue."""

    tag: str
    mid: str
    payload: dict[str, Any]
    queue: str


#: Says of a task id and a queue whether the message is wanted.
Wants = Callable[[str, str], bool]


class Adoption(Unacked):
    """The unacknowledged messages on a broker, from which some may be taken over."""

    def take(
        self, boot_id: str, tags: Iterable[str], wants: Wants, hand_over: Callable[[Taken], object]
    ) -> tuple[int, list[str]]:
        """Take over messages of the dead worker ``boot_id``, the oldest first.

        Args:
            hand_over: is given each as soon as it is this process's.

        Returns:
            the number of those, and the tags of the others.

        Raises:
            redis.exceptions.RedisError: Redis is away, or takes no messages at the moment.
        """
        taken = 0
        left: list[str] = []
        for batch in self._batches(reversed(list(tags))):
            for tag, entry in zip(batch, self.client.hmget(self.key, batch), strict=True):
                wanted = self._read(entry, wants) if entry else None
                if wanted and self._take(boot_id, tag, entry or b"", wanted):
                    taken += 1
                    hand_over(wanted)
                else:
                    left.append(tag)
        return taken, left[::-1]

    def _read(self, entry: bytes | str, wants: Wants) -> Taken | None:
        try:
            payload, _, queue = json.loads(text(entry))
            headers = payload["headers"]
            if not wants(headers["id"], queue):
                return None
            for flagged in (headers, payload["properties"].get("delivery_info")):
                if isinstance(flagged, dict):
                    flagged["redelivered"] = True
            return Taken(self._channel._next_tag(), mid_of(headers), payload, queue)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None  # nobody can read it: who puts it back says so

    def _take(self, boot_id: str, tag: str, entry: bytes | str, wanted: Taken) -> bool:
        note = json.dumps([wanted.mid, [wanted.queue]])
        new = json.dumps([wanted.payload, "", wanted.queue])
        keys = (self.key, self.index, self._prefix + returned_key(boot_id))
        words = (tag, entry, wanted.tag, new, time(), note, MEMORY)
        try:
            return bool(self.client.eval(_TAKE, len(keys), *keys, *words))
        except NoPermissionError:  # scripts are forbidden: it is put back
            return False
