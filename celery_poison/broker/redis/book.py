"""What this process holds of a Redis broker's messages: one book, whatever becomes of its connections.

kombu forgets what a channel received when the channel closes, and can neither acknowledge nor put back what
came by a connection that is lost. Here every delivery tag is in the book before Redis can put a message under
it, and stays there until Redis has confirmed that nothing lies under it any more. So, in every pool (NEW-9):

* what had begun when its connection was lost stays this worker's, and is acknowledged when it ends;
* everything else goes back at once, or as soon as Redis is there again;
* an acknowledgement that Redis did not hear is sent again;
* what lies in Redis under this worker's name and is not in the book is put back.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar

from celery.utils.log import get_logger
from redis import Redis
from redis.exceptions import RedisError

from celery_poison.broker.books import Books, InUse
from celery_poison.broker.redis.unacked import Unacked, put_back_arriving
from celery_poison.broker.tags import number_of
from celery_poison.ledger.in_step import keep_in_step

logger = get_logger("celery_poison")

#: What can go wrong while Redis is away, or takes nothing at the moment.
AWAY = (RedisError, OSError)
#: Seconds after which Redis counts as away, where the transport options set no time.
ANSWER_TIMEOUT = 10.0
#: Seconds within which Redis hears of an acknowledgement, if it is there.
PROMPT = 1.0
#: Acknowledged tags that are remembered, for a Redis that comes back without its last moments.
MEMORY = 20_000

#: Seconds after a lost connection in which Redis is compared with the book: what was on its way to Redis when
#: the connection broke may get there late.
RECHECK_FOR = 30.0


class Book:
    """The deliveries of one Redis broker that one process holds; safe to use from any thread.

    Args:
        channel: of that broker; its options say how the keys are called.
        in_use: is asked before anything goes back that was received.
    """

    away: ClassVar[tuple[type[Exception], ...]] = AWAY

    def __init__(self, channel: Any, in_use: InUse) -> None:
        pool = channel._get_pool()  # of its own: that of a channel ends with the channel
        if pool.connection_kwargs.get("socket_timeout") is None:
            pool.connection_kwargs["socket_timeout"] = ANSWER_TIMEOUT
        keep_in_step(pool)
        self._client = Redis(connection_pool=pool)
        self._unacked = Unacked(channel, self._client)
        self._in_use = in_use
        self._lock = threading.Lock()
        #: Held by the thread that writes to Redis. Others wait, and find that it has written theirs too.
        self._telling = threading.Lock()
        #: Tag -> the open channel that received it; None when that is closed. The oldest first.
        self._holders: OrderedDict[str, Any] = OrderedDict()
        #: Tags that Redis must hear of: acknowledged; put back (and whether behind all that waits).
        self._acks: OrderedDict[str, float] = OrderedDict()  # and since when
        self._returns: OrderedDict[str, bool] = OrderedDict()
        self._acknowledged: OrderedDict[str, None] = OrderedDict()
        #: Acknowledged, or about to be, since they are on record elsewhere: a Redis that forgets that
        #: acknowledgement has forgotten the record, too.
        self._moved: set[str] = set()
        #: Such ones that went back after an outage: an acknowledgement that comes later is void.
        self._retracted: set[str] = set()
        self._boot_ids: set[str] = set()
        #: Boot ids under which something may be on its way from a queue, and no channel waits for it.
        self._arriving: set[str] = set()
        #: In no channel and not in use at the last look.
        self._stray: set[str] = set()
        self._is_away = False
        self._gathers = False
        self._recheck_until = 0.0

    # --- what is in the book -------------------------------------------------------------------

    def take(self, tag: str, channel: Any) -> None:
        """Note that ``channel`` is about to receive something under ``tag``."""
        with self._lock:
            self._holders[tag] = channel
            self._boot_ids.add(channel.boot_id)

    def nothing_came(self, tag: str) -> None:
        """Forget a tag under which Redis had nothing to give."""
        with self._lock:
            self._holders.pop(tag, None)

    def lost_sight_of(self, tag: str) -> None:
        """Put back what may lie under ``tag``, or may yet: the answer was lost with its connection."""
        with self._lock:
            if self._holders.pop(tag, None) is not None:
                self._returns[tag] = False
                self._recheck_until = time.monotonic() + RECHECK_FOR

    def holds(self, tag: str) -> bool:
        """Whether a message is still this process's, and neither done nor put back."""
        return tag in self._holders

    def tags(self) -> set[str]:
        """Return the tags of everything that is held, or not yet written to Redis."""
        with self._lock:
            return {*self._holders, *self._acks, *self._returns}

    @property
    def owes_acknowledgements(self) -> bool:
        """Whether Redis has not heard of an acknowledgement for longer than it takes."""
        with self._lock:
            since = next(iter(self._acks.values()), None)
        return since is not None and time.monotonic() - since > PROMPT

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held, and Redis has confirmed everything that it was told."""
        with self._lock:
            return not (self._holders or self._acks or self._returns or self._arriving)

    # --- giving it away ------------------------------------------------------------------------

    def note_done(self, tag: str) -> bool:
        """Note that a message is done, and will be acknowledged soon; return whether it had been put back."""
        with self._lock:
            if tag not in self._holders:
                return True
            del self._holders[tag]
            self._acks[tag] = time.monotonic()
            return False

    def note_moved(self, tag: str) -> None:
        """Note that a message will be acknowledged, and is not done: it is on record elsewhere."""
        with self._lock:
            self._moved.add(tag)

    def acknowledge(self, tag: str) -> None:
        """Tell Redis that a message is done, now or as soon as it is there."""
        with self._lock:
            if tag in self._retracted:
                return self._retracted.discard(tag)
            self._holders.pop(tag, None)
            self._returns.pop(tag, None)
            self._acks.setdefault(tag, time.monotonic())
        self._attempt(self._tell_acks)

    def put_back(self, tag: str, *, leftmost: bool = False) -> None:
        """Put a message back to the front of its queue, now or as soon as Redis is there.

        Args:
            leftmost: behind everything that waits, instead.
        """
        with self._lock:
            self._holders.pop(tag, None)
            self._returns[tag] = leftmost
        self._attempt(self._tell_returns)

    def gather(self) -> None:
        """Tell Redis nothing before :meth:`tell`: many go back in one exchange."""
        self._gathers = True

    def tell(self) -> None:
        """Tell Redis what was gathered, now or as soon as it is there."""
        self._gathers = False
        self._attempt(self._tell_acks)
        self._attempt(self._tell_returns)

    def leave(self, channel: Any, stays: set[str] | None = None) -> None:
        """Put back what ``channel`` has received and no process has begun.

        Args:
            stays: tags of what is not put back, of a channel whose event loop stands; None: it closes.
        """
        in_use = self._in_use() if stays is None else stays
        with self._lock:
            mine = [tag for tag, holder in self._holders.items() if holder is channel]
            goes = [tag for tag in mine if tag not in in_use]
            for tag in goes:
                del self._holders[tag]
                self._returns[tag] = False
            if stays is None:
                self._holders.update(dict.fromkeys(set(mine).difference(goes)))
            self._recheck_until = time.monotonic() + RECHECK_FOR
            self._arriving.add(channel.boot_id)
        self._attempt(self._tell_returns)

    def leave_for_good(self) -> bool:
        """Put back everything, in use or not; return whether Redis has heard it all."""
        with self._lock:
            self._returns.update(dict.fromkeys(self._holders, False))
            self._holders.clear()
        try:
            self.flush()
        except AWAY as error:
            logger.warning("celery_poison: messages of this worker cannot be put back now: %s", error)
        return self.is_empty

    def close(self) -> None:
        self._client.connection_pool.disconnect()

    # --- in a round of its own -----------------------------------------------------------------

    def flush(self) -> None:
        """Send Redis everything that it has not heard yet, and put back what no process works on.

        Raises:
            redis.exceptions.RedisError, OSError: Redis is away; nothing is lost, the next call tries again.
        """
        self._find_strays()
        if self._is_away:
            self._retract()
        try:
            self._tell_acks()
            self._tell_returns()
            if time.monotonic() < self._recheck_until:
                self._recheck()
        except AWAY as error:
            self._gone_away(error)
            raise
        self._is_away = False

    def _retract(self) -> None:
        """Put back what is on record elsewhere, acknowledged or about to be: Redis may have forgotten it.

        A copy is recognised where Redis has not.
        """
        with self._lock:
            for tag in self._moved:
                self._acks.pop(tag, None)
                self._holders.pop(tag, None)
                self._returns[tag] = False
            self._retracted |= self._moved
            self._moved.clear()

    def renew(self) -> None:
        """Let the visibility timeout of everything that is held begin anew (TP1-8)."""
        with self._lock:  # under the tag of a poll that has been sent just now nothing lies that could be old
            tags = [tag for tag, holder in self._holders.items() if holder is None or not holder.awaits(tag)]
        if not tags:
            return
        try:
            self._unacked.renew(tags)
        except AWAY as error:
            self._gone_away(error)
            raise

    def _find_strays(self) -> None:
        """A message in no channel, and not in use for two looks running, goes back."""
        in_use = self._in_use()
        with self._lock:
            homeless = {tag for tag, holder in self._holders.items() if holder is None or holder.closed}
            stray = homeless - in_use
            for tag in stray & self._stray:
                del self._holders[tag]
                self._returns[tag] = False
            self._stray = stray

    def _recheck(self) -> None:
        """Compare with what lies in Redis: it may have lost its last moments, or an answer may be lost."""
        for boot_id in list(self._boot_ids):
            lying = self._unacked.tags_of(boot_id)
            with self._lock:
                for tag in lying:
                    if tag in self._holders or tag in self._acks or tag in self._returns:
                        continue
                    if tag in self._acknowledged:
                        self._acks[tag] = time.monotonic()
                    else:
                        self._returns[tag] = False
        self._tell_acks()
        self._tell_returns()

    def _attempt(self, tell: Callable[[], None]) -> None:
        """Send it now, unless Redis is known to be away: what it does not hear is sent later."""
        if self._is_away or self._gathers:
            return
        try:
            tell()
        except AWAY as error:
            self._gone_away(error)

    def _gone_away(self, error: Exception) -> None:
        if not self._is_away:
            logger.warning(
                "celery_poison: the broker does not answer; acknowledgements are sent again later: %s", error
            )
        self._is_away = True
        self._recheck_until = time.monotonic() + RECHECK_FOR

    def _tell_acks(self) -> None:
        with self._telling:
            if not (tags := list(self._acks)):
                return
            with self._client.pipeline(transaction=False) as pipe:
                # In this order: an entry without its place in the index would never be found again.
                pipe.hdel(self._unacked.key, *tags)
                pipe.zrem(self._unacked.index, *tags)
                pipe.execute()
            with self._lock:
                for tag in tags:
                    self._acks.pop(tag, None)
                    if tag in self._moved:
                        self._moved.discard(tag)
                    else:
                        self._acknowledged[tag] = None
                while len(self._acknowledged) > MEMORY:
                    self._acknowledged.popitem(last=False)

    def _tell_returns(self) -> None:
        with self._telling:
            with self._lock:
                returns, arriving = dict(self._returns), set(self._arriving)
            for boot_id in arriving:  # it is younger than all that had arrived, and behind it then
                put_back_arriving(self._unacked, boot_id)
            for leftmost in (True, False):
                tags = [tag for tag in returns if returns[tag] is leftmost]
                if not leftmost:  # the newest first, so that the oldest is the first in line
                    tags.sort(key=number_of, reverse=True)
                self._unacked.restore(tags, leftmost=leftmost)
            with self._lock:
                self._arriving -= arriving
                for tag in returns:
                    self._returns.pop(tag, None)


def book_of(books: Books, channel: Any) -> Book:
    """Return the book among ``books`` for the broker of ``channel``."""
    uri = channel.connection.client.as_uri(include_password=True)
    key = (uri, channel.unacked_key, channel.unacked_index_key, channel.global_keyprefix or "")
    timeout = float(channel.visibility_timeout)
    return books.of(key, lambda in_use: Book(channel, in_use), timeout)
