"""Release with care: one message first, no faster than asked, and no further once one has died again (NEW-6).

What became of the released messages is read in the journal; nothing is kept beside it. If the releasing
process dies, what it had not released yet is still in quarantine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from celery_poison.basics.text import clean, span
from celery_poison.desk.search import UNITS
from celery_poison.desk.sentences import Entry, sentence
from celery_poison.errors import PoisonError
from celery_poison.ledger import Ledger
from celery_poison.ledger.journal_read import extent, extract
from celery_poison.states import Event

#: Seconds between two looks at the journal, and at a queue that is full.
LOOK_EVERY = 0.5
#: Seconds between two lines that say how far it is.
SAY_EVERY = 5.0
#: Messages that are released at a time where nothing is waited for; after a death none but these follow.
RELEASED_AT_ONCE = 100
#: The default of ``Care.soak``, in seconds.
SOAK = 60.0


class BadCare(PoisonError):
    """A release cannot be that careful: a time, a rate or a number is not above zero."""


def seconds_of(typed: str) -> float:
    """Return how many seconds ``90s``, ``15m``, ``12h`` or ``7d`` are.

    Raises:
        BadCare: it is none of these, or nothing.
    """
    number, unit = typed[:-1], typed[-1:]
    if number.isdecimal() and len(number) < 10 and unit in UNITS and int(number):
        return float(int(number) * UNITS[unit])
    raise BadCare(f"{typed!r}: write a number with s, m, h or d, for example 12h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """How careful a release is.

    Attributes:
        canary: release one message first, the others only when it has ended well.
        soak: seconds from the canary's release to that of the others. By then it must have ended without an
            error, and neither it nor a retry of it may have died, failed or come back to quarantine.
        rate: at most so many messages per second. None: as fast as the broker takes them.
        max_waiting: release no more while so many messages wait in the queue, or so many of the released
            ones have not ended. None: whatever waits.
        stop_on_death: release no more once a released message has died again or come back to quarantine.

    Raises:
        BadCare: ``soak``, ``rate`` or ``max_waiting`` is not above zero.
    """

    canary: bool = False
    soak: float = SOAK
    rate: float | None = None
    max_waiting: int | None = None
    stop_on_death: bool = True

    def __post_init__(self) -> None:
        for name in ("soak", "rate", "max_waiting"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BadCare(f"{name} is {value}: it must be above zero")

    @property
    def takes_time(self) -> bool:
        """Whether the release waits for something."""
        return self.canary or self.rate is not None or self.max_waiting is not None


class Feed:
    """The entries of the journal since the last reading; at the first, since this object was made.

    Iterating raises ``LedgerUnavailable`` when Redis is away.

    Args:
        deaths_only: read nothing where no message died or came to quarantine since. Most entries are those of
            the release itself, and to read one takes a quarter of the time that it took to release it.
    """

    def __init__(self, ledger: Ledger, *, deaths_only: bool = False) -> None:
        self._client, self._keys = ledger.client, ledger.keys
        self._queries = ledger.read if deaths_only else None
        self._counted = self._count()
        self._after = extent(self._client, self._keys).last or "0-0"

    def __iter__(self) -> Iterator[Entry]:
        if self._queries and self._none_died():
            return
        for entry in extract(self._client, self._keys, after=self._after, until="+"):
            self._after = entry["at"]
            yield entry

    def _none_died(self) -> bool:
        # Journalled and counted in one step: what is counted after this is in the journal, is behind it too.
        last, before = extent(self._client, self._keys).last, self._counted
        self._counted = self._count()
        if self._counted != before:
            return False
        self._after = last or self._after
        return True

    def _count(self) -> list[object]:
        """Return totals, one of which changes with each death and each arrival in quarantine."""
        if self._queries is None:
            return []
        counts = self._queries.counts()
        deaths = {name: counts[name] for name in counts if name.startswith(("crashed:", "quarantined:"))}
        return [deaths, self._queries.would_quarantine()]


#: Outcomes of a run that ended as its task wanted, or alive at least.
_WELL = ("success", "ignored", "discarded", "")


class Watch:
    """The fate of the messages of one release, by the journal. They are known by their task ids.

    Attributes:
        death: which of them died again or came back first, and how; empty as long as none has.
        under_way: those that have not ended; each is added when it is released.
        ends: how the others ended, in the journal's word; empty: alive, no more is known.
    """

    def __init__(self) -> None:
        self.death = ""
        self.under_way: set[str] = set()
        self.ends: dict[str, str] = {}
        self._retried: set[str] = set()

    def hear(self, entries: Iterable[Entry]) -> None:
        """Take in new entries of the journal."""
        for entry in entries:
            id = entry["id"]
            if id not in self.under_way and id not in self.ends:
                continue
            match entry["event"]:
                case Event.CRASHED | Event.QUARANTINED | Event.WOULD_QUARANTINE as event:
                    event_in_words = sentence({**entry, "evidence": ""})  # `show` tells that
                    self.death = self.death or f"{clean(id)} {clean(entry['task'])} {event_in_words}"
                    self._note_end(id, event)
                case Event.FINISHED if entry["outcome"] == "retry":
                    self._retried.add(id)
                    self._goes_on(id)
                case Event.FINISHED:
                    self._note_end(id, entry["outcome"])
                case Event.ROLLED_BACK:
                    self._goes_on(id)
                case Event.CLEARED if id in self.under_way and id not in self._retried:
                    self._note_end(id, "")  # its `finished` comes yet, or never: poison_journal="incidents"

    def _note_end(self, id: str, outcome: str) -> None:
        self.ends[id] = outcome
        self.under_way.discard(id)

    def _goes_on(self, id: str) -> None:
        self.ends.pop(id, None)
        self.under_way.add(id)


class Pace:
    """Lets the messages of one release go, some at a time; a stop has a reason.

    Args:
        feed: what the journal has got since it was asked last.
        queue_of: the queue a message goes to, by its id; empty where that is not known.
        depth: how many messages wait in a queue.
        say: called with a sentence about what the release waits for, and how far it is.
        clock, sleep: the time, in seconds.

    Attributes:
        held_back: ids that were not let go, and
        stopped_by: why not; empty if all were.
    """

    def __init__(
        self,
        care: Care,
        feed: Iterable[Entry],
        queue_of: Callable[[str], str],
        depth: Callable[[str], int],
        say: Callable[[str], object] | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.care = care
        self.held_back: list[str] = []
        self.stopped_by = ""
        self._feed, self._watch = feed, Watch()
        self._queue_of, self._depth = queue_of, depth
        self._say, self._clock, self._sleep = say or (lambda sentence: None), clock, sleep
        self._released = self._total = 0
        self._canary = ""
        self._queue = ""  # of the message in hand
        self._room: dict[str, int] = {}
        self._due = self._next_look = clock()
        self._next_line = self._due + SAY_EVERY

    def let_go(self, ids: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield ids whose messages may be released now: one, where something is waited for, else a batch."""
        self._total = len(ids)
        begin = 0
        while begin < len(ids):
            self._wait_for_turn(ids[begin])
            if self.stopped_by:
                self.held_back = [*ids[begin:]]
                return
            is_slow = self.care.rate or self.care.max_waiting or (self.care.canary and not self._released)
            batch = ids[begin : begin + (1 if is_slow else RELEASED_AT_ONCE)]
            yield batch
            begin += len(batch)
            if self._canary:
                self._wait_for_canary(len(ids) - begin)

    def note_release(self, id: str) -> None:
        """Hear that a message in hand, of this task id, was released."""
        self._watch.under_way.add(id)
        self._released += 1
        if self._queue:
            self._room[self._queue] -= 1
        if self.care.canary and self._released == 1:
            self._canary = id
        if self.care.rate:
            self._due = max(self._due, self._clock()) + 1 / self.care.rate

    # --- the canary ----------------------------------------------------------------------------

    def _wait_for_canary(self, others: int) -> None:
        id, self._canary = self._canary, ""
        if not others:
            return
        soak, name = span(self.care.soak), f"the canary {clean(id)}"
        self._say(f"{name} is released: it has {soak} to end well, {others} wait for that")
        over = self._clock() + self.care.soak
        while (left := over - self._clock()) > 0:
            if self._watch.death or self._watch.ends.get(id) not in (None, *_WELL):
                break
            self._sleep(min(LOOK_EVERY, left))
            self._look()
        if self._watch.death:
            self.stopped_by = f"the canary died again or came back: {self._watch.death}"
        elif (outcome := self._watch.ends.get(id)) is None:
            self.stopped_by = f"{name} has not ended within {soak}; a longer soak gives it more time"
        elif outcome in _WELL:
            self._say(f"{name} ended well")
        else:
            self.stopped_by = f"{name} ended with an error ({outcome})"

    # --- pace ----------------------------------------------------------------------------------

    def _wait_for_turn(self, id: str) -> None:
        self._look_if_due()
        while not self.stopped_by and (seconds := self._must_wait(id)):
            self._sleep(seconds)
            self._look_if_due()

    def _must_wait(self, id: str) -> float:
        """Return for how many seconds at least; 0: it may go."""
        early = self._due - self._clock()
        if early > 0:
            return min(LOOK_EVERY, early)
        return 0.0 if self._has_room(id) else LOOK_EVERY

    def _has_room(self, id: str) -> bool:
        most = self.care.max_waiting
        if most is None:
            return True
        self._queue = self._queue_of(id)
        if not self._queue:
            return True  # it will be refused
        if self._room.get(self._queue, 0) <= 0:
            self._room[self._queue] = most - self._depth(self._queue)
        return len(self._watch.under_way) < most and self._room[self._queue] > 0

    def _look_if_due(self) -> None:
        now = self._clock()
        if now < self._next_look:
            return
        self._look()
        if self._watch.death and self.care.stop_on_death:
            self.stopped_by = self._watch.death
        if now >= self._next_line:
            self._next_line = now + SAY_EVERY
            self._say(
                f"{self._released} of {self._total} released, {len(self._watch.under_way)} not ended yet"
            )

    def _look(self) -> None:
        self._next_look = self._clock() + LOOK_EVERY
        self._watch.hear(self._feed)
