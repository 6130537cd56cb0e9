"""Tells whoever ``poison_notify`` names of new groups in quarantine, and of a fleet gate that closed.

The active monitor does, in threads of its own, one for each receiver: one that hangs or refuses holds up
nobody. What was told is noted in the ledger afterwards: after a monitor that dies in between, the next one
tells it again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from threading import Thread
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from celery_poison import causes, signals
from celery_poison.errors import Fenced, LedgerUnavailable
from celery_poison.failover.notifications import Notification, Wording, due
from celery_poison.failover.receivers import NotDelivered, Receiver
from celery_poison.forking import no_fork
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.quarantine.search import Count, Group
from celery_poison.settings import Settings
from celery_poison.values import receivers_of

logger = get_logger("celery_poison")

#: Seconds: between two looks; after which an empty group is forgotten; the pauses of a receiver that refuses,
#: the first, doubled each time, and the longest.
LOOK, EMPTY, PAUSE, LONGEST = 1.0, 600.0, 5.0, 600.0
#: How many times as long as reading took nothing is read: between two pages, and before all is read again.
_REST, _RECOUNT = 3, 5
#: Stands for a group where the fleet gate is meant.
GATE = "gate"

#: What is to be told, and what is to be noted then.
_Batch = list[tuple[Notification, dict[str, int]]]


def _started(work: Callable[[], object]) -> Thread:
    """Do something in a thread of its own; what goes wrong is done again with a later look."""

    def patiently() -> None:
        try:
            work()
        except (LedgerUnavailable, Fenced) as error:
            logger.debug("celery_poison: nobody is notified at the moment: %s", error)
        except Exception:
            logger.exception("celery_poison: somebody was not notified; it is tried again")

    thread = Thread(target=patiently, name="poison-notifier", daemon=True)
    thread.start()
    return thread


class GroupCounts:
    """Counts what is in quarantine by group: adds what came, and counts anew when something has left."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._counts: dict[tuple[str, str, str | None], Count] = {}
        self._newest_ms = 0
        self._recount_at = 0.0

    def look(self) -> list[Group]:
        """Return all groups; of a very large quarantine what has left is noticed late.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        self._read()
        with no_fork():
            total = self._queries.totals()["quarantined"]
        begun = time.monotonic()
        if total != sum(count.count for count in self._counts.values()) and begun >= self._recount_at:
            self._counts, self._newest_ms = {}, 0
            self._read()
            now = time.monotonic()
            self._recount_at = now + _RECOUNT * (now - begun)
        return [count.group(*key) for key, count in self._counts.items()]

    def _read(self) -> None:
        pages = self._queries.arrivals(self._newest_ms)
        while True:
            begun = time.monotonic()
            with no_fork():
                page = next(pages, None)
            if page is None:
                return
            for brief in page:
                # As `groups` does; a kept failure's fingerprint tells what was raised, and where.
                key = (brief.task, brief.cause, brief.fingerprint if brief.cause == causes.FAILURE else None)
                self._counts.setdefault(key, Count()).add(brief)
                self._newest_ms = max(self._newest_ms, round(brief.quarantined_at * 1000))
            time.sleep(_REST * (time.monotonic() - begun))


class Delivery:
    """One receiver: what it was told, and when it may be told more.

    Args:
        tell: raises ``NotDelivered``.

    Attributes:
        name: for people, without secrets.
        unnoted: what it was told and the ledger does not know yet.
    """

    def __init__(
        self, name: str, key: str, tell: Callable[[Mapping[str, Any]], object], per_minute: float
    ) -> None:
        self.name = name
        self.unnoted: dict[str, int] = {}
        self._end = f":{key}"
        self._tell = tell
        self._per_minute = per_minute
        self._sent: deque[float] = deque()
        self._failures = 0
        self._not_before = 0.0
        self._thread: Thread | None = None

    def left(self) -> float:
        """Return how many notifications may be sent now; none while one is, and in a pause."""
        now = time.monotonic()
        while self._sent and self._sent[0] <= now - 60:
            self._sent.popleft()
        busy = self._thread is not None and self._thread.is_alive()
        return 0 if busy or now < self._not_before else self._per_minute - len(self._sent)

    def before(self, notified: Mapping[str, int]) -> dict[str, int]:
        """Return group -> messages that were in it when this receiver was told."""
        own = {**notified, **self.unnoted}.items()
        return {field.removesuffix(self._end): n for field, n in own if field.endswith(self._end)}

    def field(self, group: str) -> str:
        return group + self._end

    def start(self, work: Callable[[], object]) -> None:
        self._thread = _started(work)

    def tell(self, notification: Notification) -> bool:
        """Tell the receiver; return whether it took it."""
        try:
            self._tell(notification.as_dict())
        except Exception as error:
            why = error if isinstance(error, NotDelivered) else type(error).__name__
            pause = min(LONGEST, PAUSE * 2 ** min(self._failures, 20))
            self._failures += 1
            self._not_before = time.monotonic() + pause
            story = "celery_poison: %s could not be notified: %s; tried again in %g s"
            logger.warning(story, self.name, why, pause)
            return False
        self._failures = 0
        self._sent.append(time.monotonic())
        return True


class Notifier:
    """What the active monitor does about ``poison_notify``.

    Args:
        announce: sends a signal, and the event of that name.
    """

    def __init__(
        self, app: Celery, ledger: Ledger, settings: Settings, announce: Callable[..., object]
    ) -> None:
        self._ledger = ledger
        self._queries = Queries(ledger)
        self._counts = GroupCounts(self._queries)
        self._wording = Wording(app.main or "celery", settings.namespace)
        self._announce = announce
        rate = settings.notify_per_minute
        self._deliveries = [
            Delivery(receiver.name, receiver.key, receiver.tell, rate)
            if (receiver := None if target == "event" else Receiver(target))
            else Delivery("event", "event", self._send_event, float("inf"))
            for target in receivers_of(settings.notify)
        ]
        self._empty_since: dict[str, float] = {}
        self._next_look = 0.0
        self._thread: Thread | None = None

    def _send_event(self, payload: Mapping[str, Any]) -> None:
        if payload["kind"] == "group":  # the gate has a signal of its own
            self._announce(signals.group_quarantined, **payload)

    def soon(self, fence: int) -> None:
        """Look, in a thread of its own, if anybody wants to be told and it is time."""
        now = time.monotonic()
        working = self._thread is not None and self._thread.is_alive()
        if self._deliveries and now >= self._next_look and not working:
            self._next_look = now + LOOK
            self._thread = _started(partial(self.round, fence))

    def round(self, fence: int) -> None:
        """Look once, and begin to tell each receiver that is free what it is due.

        Raises:
            LedgerUnavailable: Redis is away.
            Fenced: another monitor took over.
        """
        groups = {group.group: group for group in self._counts.look()}
        # Asked before what was told is read: of who is free now, all of it has been noted.
        free = [(delivery, left) for delivery in self._deliveries if (left := delivery.left()) >= 1]
        with no_fork():
            notified = self._queries.notified()
            self._forget(notified, groups, fence)
            batches = [self._due(delivery, left, groups, notified) for delivery, left in free]
        for (delivery, _), batch in zip(free, batches, strict=True):
            if batch:
                delivery.start(partial(self._deliver, delivery, batch, fence))

    def _due(
        self, delivery: Delivery, left: float, groups: Mapping[str, Group], notified: Mapping[str, int]
    ) -> _Batch:
        before, gate, found = delivery.before(notified), self._queries.gate(), _Batch()
        closed_ms = round((gate.closed_at or 0) * 1000)
        if gate.closed and before.get(GATE) != closed_ms:
            found.append((self._wording.gate(gate), {delivery.field(GATE): closed_ms}))
        counts = {id: group.count for id, group in groups.items()}
        for ids in due(counts, before, left - len(found)):
            if len(ids) > 1:
                worded = self._wording.groups([groups[id] for id in ids])
            else:
                (group,) = (groups[id] for id in ids)
                example = self._queries.record(group.newest)
                worded = self._wording.group(group, before.get(group.group, 0), example)
            found.append((worded, {delivery.field(id): counts[id] for id in ids}))
        return found

    def _deliver(self, delivery: Delivery, batch: _Batch, fence: int) -> None:
        for notification, noted in batch:
            self._note(delivery, fence)  # another monitor may have taken over meanwhile
            told = delivery.tell(notification)
            delivery.unnoted |= noted if told else {}
            self._note(delivery, fence, "sent" if told else "failed")
            if not told:
                return

    def _note(self, delivery: Delivery, fence: int, outcome: str = "") -> None:
        with no_fork():
            self._ledger.note_notified(fence, outcome, delivery.unnoted)
        delivery.unnoted = {}

    def _forget(self, notified: Mapping[str, int], groups: Mapping[str, Group], fence: int) -> None:
        """Forget groups that have been empty for so long that they are new when they come back."""
        now = time.monotonic()
        empty = {field.partition(":")[0] for field in notified} - groups.keys() - {GATE}
        self._empty_since = {group: self._empty_since.get(group, now) for group in empty}
        over = {group for group, since in self._empty_since.items() if now - since >= EMPTY}
        if over:
            gone = {field: "" for field in notified if field.partition(":")[0] in over}
            self._ledger.note_notified(fence, changes=gone)
