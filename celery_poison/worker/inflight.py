"""What this worker knows about its own starts, until nothing needs to know any more.

A message may be delivered again while its first delivery still runs here (the broker connection was
lost), or after it ended here and the ledger never heard of that.

Acknowledged starts are forgotten a little late, and many at a time. Late, because an acknowledgement may be
lost together with its connection: the copy that the broker then delivers again is recognised by the start
that is still on record. What is not on record then may only be late: after a stall Redis may read this
process's connection before that of the process which ran the task. So it is looked for once more before it
counts as lost.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from celery.utils.log import get_logger
from celery.worker.state import active_requests, reserved_requests

from celery_poison.errors import LedgerUnavailable, StaleDelivery
from celery_poison.headers import is_unique, mid_of
from celery_poison.ledger import Ledger
from celery_poison.model import Ended, Guilt, Phase, Start

logger = get_logger("celery_poison")

T = TypeVar("T")

#: Ended starts that are remembered, and that a Redis is told again which may have forgotten them: a copy
#: comes back within seconds or not at all.
MEMORY = 20_000

#: Messages of which it is known that they were received here, twice as many at most.
MET = 5_000


def unchanged(read: Callable[[], T]) -> T:
    """Read sets that other threads change; again where one of them did so meanwhile."""
    while True:
        with suppress(RuntimeError):
            return read()


class InFlight:
    """Starts of one worker process: let in, in the pool, or ended.

    Attributes:
        undecided: requests that have ended, and whose message is kept until its fate is on record.
        at_hand: delivery tags of what is being unpacked and handed over at this moment.
    """

    def __init__(self) -> None:
        self.at_hand: set[str] = set()
        self.undecided: set[Any] = set()
        self._let_in: set[str] = set()
        self._in_pool: dict[str, Any] = {}
        self._ended: OrderedDict[str, bool] = OrderedDict()
        self._met: set[str] = set()
        self._met_before: set[str] = set()

    def meets_again(self, message: Any, mid: str) -> bool:
        """Note that a message was received; return whether it was here already, from the same queue (TP1-8).

        A publisher sends again what it had no answer for, and no broker calls that a redelivery.
        """
        if not is_unique(mid):  # two publishes, for all that is known
            return False
        key = f"{mid} {message.delivery_info.get('consumer_tag') or getattr(message, 'queue_name', '')}"
        if key in self._met or key in self._met_before:
            return True
        self._met.add(key)
        if len(self._met) > MET:
            self._met, self._met_before = set(), self._met
        return False

    def hand_over(self, let_in: Callable[[Any], object], delivery: Any) -> None:
        """Let a delivery in (on the event loop)."""
        tag = str(delivery.message.delivery_tag)
        self.at_hand.add(tag)
        try:
            let_in(delivery)
        finally:
            self.at_hand.discard(tag)

    def let_in(self, token: str) -> None:
        """A delivery of the present connection was admitted."""
        self._let_in.add(token)

    def forget_admitted(self, token: str) -> None:
        """Forget a message that was revoked, expired or rejected before it went to the pool."""
        self._let_in.discard(token)

    def went_to_pool(self, token: str, request: Any) -> None:
        self._let_in.discard(token)
        self._in_pool[token] = request

    def pool_refused(self, token: str) -> None:
        """The pool did not take it."""
        self._in_pool.pop(token, None)
        self._let_in.discard(token)

    def tags_in_use(self) -> set[str]:
        """Return the delivery tags of what has begun, or whose fate is being decided; from any thread."""
        held = unchanged(lambda: (*active_requests, *self.undecided))
        return {str(request.message.delivery_tag) for request in held}

    def is_in_pool(self, token: str) -> bool:
        return token in self._in_pool

    def in_pool(self) -> list[Any]:
        """Return the requests that run, or were handed to the pool to run."""
        return list(self._in_pool.values())

    def is_running(self, mid: str) -> bool:
        """Whether a message runs, or was handed to the pool to run."""
        return any(request.mid == mid for request in self.in_pool())

    def is_reserved(self, mid: str) -> bool:
        """Whether a delivery of a message waits here for its turn; from any thread."""
        waiting = unchanged(lambda: set(reserved_requests) - set(active_requests))
        return any(mid_of(request.request_dict) == mid for request in waiting if "id" in request.request_dict)

    def left_pool(self, token: str, *, ended_well: bool) -> None:
        self._in_pool.pop(token, None)
        self._ended[token] = ended_well
        if len(self._ended) > MEMORY:
            self._ended.popitem(last=False)

    def forget_let_in(self) -> set[str]:
        """Return the tokens of what was let in and not sent to the pool yet: it is dropped."""
        void, self._let_in = self._let_in, set()
        return void

    def connection_lost(self, active: Container[Any]) -> set[str]:
        """Forget what had not begun: it is dropped, and the broker delivers it again.

        Returns the tokens of what was let in and not sent to the pool yet.
        """
        self._in_pool = {token: request for token, request in self._in_pool.items() if request in active}
        return self.forget_let_in()

    def is_known(self, start: Start) -> bool:
        """Whether a start is on its way here, runs, or has an end that is being put on record."""
        is_undecided = any(request.start().token == start.token for request in list(self.undecided))
        return is_undecided or (self.how_ended(start.token) is None and self.of(start, Ended.NOT)[0])

    def how_ended(self, token: str) -> bool | None:
        """Return whether a start ended well here; None if it did not end, or that is long ago."""
        return None if token in self._in_pool or token in self._let_in else self._ended.get(token)

    def of(self, start: Start, ended: Ended) -> tuple[bool, Ended]:
        """Return whether an entry of this worker stands in the way of a copy, and how it ended."""
        if ended is not Ended.NOT:
            return True, ended
        if start.token in self._in_pool or start.token in self._let_in:
            return True, Ended.NOT
        if start.token in self._ended:
            well = self._ended[start.token]
            return well, Ended.DONE if well else Ended.NOT
        if start.phase != Phase.RUNNING or not start.pid:  # no process has said that it began
            return False, Ended.NOT
        try:
            os.kill(start.pid, 0)  # it began although it was thought dropped: only its process knows more
        except OSError:
            return False, Ended.NOT
        return True, Ended.NOT


#: Seconds between an acknowledgement and the forgetting of its start, and from there to the second look.
DELAY = 2.0
#: Seconds for which the end of a start is kept whose message may be delivered again.
FOR_A_COPY = 600.0
#: Starts forgotten in one script call; keeps Redis responsive.
BATCH = 500


class Acknowledged(NamedTuple):
    """A start that ended and whose message was acknowledged.

    Attributes:
        due: when it may be forgotten, by this process's clock.
        guilt: what its end proves.
    """

    due: float
    mid: str
    token: str
    id: str
    task: str
    guilt: Guilt = Guilt.CLEARED


class DeferredCleanup:
    """Collects acknowledged starts; thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: deque[Acknowledged] = deque()
        self._missed: deque[Acknowledged] = deque()
        self._late: deque[Acknowledged] = deque()
        #: Kept for a copy that may come: the worker that meets it takes them off the ledger.
        self._kept: list[Acknowledged] = []
        self._lock = threading.Lock()
        #: Starts or ends that never reached the ledger: their tasks ran unguarded.
        self.missing = 0

    def add(self, end: Acknowledged) -> None:
        self._waiting.append(end._replace(due=time.monotonic() + DELAY))

    def add_healthy(self, mid: str, token: str, id: str, task: str) -> None:
        """Add a start of a message without a history, that has ended well."""
        self._waiting.append(Acknowledged(time.monotonic() + DELAY, mid, token, id, task))

    def connection_lost(self, keep_for: float) -> list[Acknowledged]:
        """Keep what was acknowledged just now, and return it: the broker may deliver it again.

        Args:
            keep_for: seconds within which it would.
        """
        with self._lock:
            kept = self.recent()
            self._waiting.clear()
        self.keep(kept, keep_for)
        return kept

    def keep(self, ended: Iterable[Acknowledged], seconds: float) -> None:
        """Keep starts that ended on record for so long; a copy that is met takes them off earlier."""
        due = time.monotonic() + seconds
        with self._lock:
            self._kept += [end._replace(due=due) for end in ended]

    @property
    def has_work(self) -> bool:
        """Whether anything was acknowledged of which the event loop must be asked."""
        return bool(self._waiting)

    def recent(self) -> list[Acknowledged]:
        """Return the messages that were acknowledged just now, and are still on record for that."""
        return list(self._waiting.copy())[-MEMORY:]

    def tokens(self) -> set[str]:
        """Return the tokens of all starts that are on record still, and will be forgotten from here."""
        with self._lock:
            lines = (self._waiting.copy(), self._missed, self._late, self._kept)
            return {end.token for line in lines for end in line}

    def take_back_flags(self, candidates: set[str]) -> None:
        """Take back what is held against starts that had ended here: their monitor could not see that.

        Args:
            candidates: task ids of all messages that are flagged.

        Raises:
            LedgerUnavailable: the next call tries again.
        """
        with self._lock:
            lines = (self._waiting.copy(), self._kept)
            ended = [end for line in lines for end in line if end.id in candidates]
        for end in ended:
            with suppress(StaleDelivery):
                self._ledger.messages.revoke_strike(end.mid, end.token, end.id, end.guilt)

    def clean_up(self, heard_until: float = math.inf, *, everything: bool = False) -> None:
        """Forget what is due, or everything at the end.

        Args:
            heard_until: the time until which the event loop would have noticed a lost connection.

        Raises:
            LedgerUnavailable: nothing is lost, the next call tries again.
        """
        with self._lock:
            now = time.monotonic()
            horizon = float("inf") if everything else now
            self._forget_kept(now + FOR_A_COPY / 2 if everything else now)
            self.missing += sum(1 for _ in self._forget(self._late, horizon))
            self._missed.extend(self._forget(self._waiting, horizon if everything else min(now, heard_until)))
            while self._missed:  # lost, late, or ended for dead by a monitor
                end = self._missed[0]
                try:
                    self._ledger.messages.revoke_strike(end.mid, end.token, end.id, end.guilt)
                except StaleDelivery:
                    self._missed.popleft()  # a copy was started, in its place on record: the journal says so
                except LedgerUnavailable:
                    raise
                except Exception as error:
                    self._set_aside(self._missed.popleft(), error)
                else:
                    self._late.append(self._missed.popleft()._replace(due=time.monotonic() + DELAY))
            if everything:
                self.missing += len(self._late)
                self._late.clear()

    def _forget_kept(self, horizon: float) -> None:
        # Everybody who keeps some does so for one of two times: those that are due need not stand first.
        due = deque(end for end in self._kept if end.due <= horizon)
        self._kept = [end for end in self._kept if end.due > horizon]
        try:
            for _ in self._forget(due, horizon):
                pass  # its copy came
        except BaseException:
            self._kept += due
            raise

    def _forget(self, line: deque[Acknowledged], horizon: float) -> Iterator[Acknowledged]:
        """Forget those in ``line`` that are due; yield those whose start or end was not on record."""
        while line and line[0].due <= horizon:
            batch: list[Acknowledged] = []
            while line and len(batch) < BATCH and line[0].due <= horizon:
                batch.append(line.popleft())
            try:
                missing = self._ledger.messages.clean_up((end.mid, end.token) for end in batch)
            except LedgerUnavailable:
                line.extendleft(reversed(batch))
                raise
            except Exception:
                yield from self._one_by_one(batch)
            else:
                yield from (batch[number] for number in missing)

    def _one_by_one(self, batch: Sequence[Acknowledged]) -> Iterator[Acknowledged]:
        """Forget each for itself: what is wrong with one must not keep the others on record."""
        for number, end in enumerate(batch):
            try:
                yield from [end for _ in self._ledger.messages.clean_up([(end.mid, end.token)])]
            except LedgerUnavailable:
                self._missed.extend(batch[number:])  # looked at once more, as what may only be late
                raise
            except Exception as error:
                self._set_aside(end, error)

    def _set_aside(self, end: Acknowledged, error: Exception) -> None:
        self.missing += 1
        logger.error("celery_poison: a start of %s stays on record", end.task, exc_info=error)
