"""Finds the messages that no worker works on, in the ledger and on a Redis broker. Changes nothing.

What a person paused is left out.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from celery import Celery

from celery_poison.basics.calling import gather
from celery_poison.basics.text import argument, command, when
from celery_poison.broker.bounds import bounded_options
from celery_poison.broker.kinds import broker_of
from celery_poison.broker.port import HeldMessage
from celery_poison.ledger.fleet_model import consumed_queues
from celery_poison.model import Record, Start
from celery_poison.plugin import plugin_of
from celery_poison.states import State

#: Stuck messages that are named, of all kinds together; of each kind, those that are looked at: the oldest.
STUCK_NAMED, STUCK_LOOKED_AT = 20, 1000


class StuckKind(StrEnum):
    """Where a message is on record that does not run."""

    CANDIDATE = "candidate"
    PARKED = "parked"
    UNACKED = "unacked"
    """On a Redis broker: received, and not acknowledged. Other brokers keep that to themselves."""


#: Activation intervals. A dead worker is declared dead after one; what it held is back in another.
RECOVERED = 3
#: A message that is put back is the first in line, and looked at alone if need be.
RUN_AGAIN = 30
#: A worker that lives may have other suspects to try first, one after the other.
TRIED = 360
#: Seconds by which kombu may be late with a visibility timeout: it looks now and then, while it receives.
SWEPT = 300.0


def is_stuck(
    kind: StuckKind, age: float, owner_lives: bool | None, *, activation: float, visibility: float = math.inf
) -> bool:
    """Return whether no worker works on a message that should have gone on by now.

    Args:
        age: seconds since it was last heard of: flagged or put back, parked, received or renewed; and since
            its owner was heard last, if that is gone.
        owner_lives: whether the worker lives that holds it; of a parked message, that runs its earlier start.
            None: there is none, or the ledger does not know it, as one without this plugin.
        activation: ``poison_activation_interval``, in seconds.
        visibility: the broker's visibility timeout, in seconds.
    """
    match kind, owner_lives:
        case StuckKind.CANDIDATE, None:
            return age > RUN_AGAIN * activation
        case StuckKind.CANDIDATE, True:
            return age > TRIED * activation
        case StuckKind.PARKED, True:
            return False
        case StuckKind.UNACKED, None:
            return age > visibility + SWEPT
        case _:  # its worker is gone; or it lives, and does not renew what it has forgotten
            return age > RECOVERED * activation


@dataclass(frozen=True, slots=True)
class Stuck(Record):
    """One message that no worker works on.

    Attributes:
        id: its task id; a delivery tag where that cannot be read.
        since: seconds since 1970, and
        age: seconds for which it has been so.
        why: what is known about it, and
        cure: what to do, as sentences.
    """

    kind: StuckKind
    id: str
    queue: str
    since: float
    age: float
    why: str
    cure: str


@dataclass(frozen=True, slots=True)
class Stranded:
    """All messages that no worker works on.

    Attributes:
        counts: by kind; without ``unacked`` where the broker is not Redis, or cannot be read.
        oldest: at most 20 of them, the oldest first.
        unread: why the broker could not be read; empty if it could, or need not be.
    """

    counts: Mapping[StuckKind, int]
    oldest: list[Stuck]
    unread: str = ""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class _Owner(NamedTuple):
    """The worker that has, or had, a message in hand; ``heard``: when it was last, if it is gone."""

    lives: bool | None = None
    name: str = ""
    heard: float = 0.0


def find_stranded(app: Celery) -> Stranded:
    """Look at the ledger and the broker of ``app``; of each kind at the 1000 oldest messages.

    Raises:
        ConfigurationError: a setting is wrong, so that it is not known where to look.
        LedgerUnavailable: Redis is away. ``unread`` says that a broker is away.
    """
    look = _Search(app)
    by_kind = {StuckKind.CANDIDATE: list(look.candidates()), StuckKind.PARKED: list(look.parked())}
    unread = ""
    try:
        with app.connection_for_read(transport_options=bounded_options(app)) as connection:
            held = broker_of(connection).unacknowledged(connection, look.recovered_after, STUCK_LOOKED_AT)
            if held is not None:
                by_kind[StuckKind.UNACKED] = list(look.unacked(held))
    except Exception as error:  # each transport has errors of its own
        unread = f"the broker cannot be read ({type(error).__name__}): unacknowledged messages are not known"
    elsewhere = {
        stuck.id for kind in (StuckKind.PARKED, StuckKind.UNACKED) for stuck in by_kind.get(kind, ())
    }
    by_kind[StuckKind.CANDIDATE] = [
        stuck for stuck in by_kind[StuckKind.CANDIDATE] if stuck.id not in elsewhere
    ]
    oldest = sorted((stuck for kind in by_kind.values() for stuck in kind), key=lambda stuck: stuck.since)
    return Stranded({kind: len(stuck) for kind, stuck in by_kind.items()}, oldest[:STUCK_NAMED], unread)


class _Search:
    """One look at the messages that wait, and at the workers that live."""

    def __init__(self, app: Celery) -> None:
        plugin = plugin_of(app)
        self._activation = plugin.settings.activation_interval
        self._has_cells = plugin.settings.trial == "cell"
        ledger = plugin.open_ledger()
        self._queries = ledger.read
        self._kept_waiting = [hook(ledger) for hook in plugin.extensions.keeps_waiting]
        self._ledger, self._complain = ledger, plugin.complain
        self._still_awaited = plugin.extensions.still_awaited
        self._now = self._queries.now_ms() / 1000
        self._monitor = self._queries.monitor()
        workers = self._queries.workers(int(self._activation * 1000))
        self._consumed = consumed_queues(workers)
        dead = self._queries.declared_dead().items()
        self._owners = {_boot_id(name): _Owner(False, name, at / 1000) for name, at in dead}
        for worker in workers:
            heard = 0.0 if worker.alive else worker.last_beat or 0.0
            self._owners[_boot_id(worker.worker)] = _Owner(worker.alive, worker.worker, heard)

    def candidates(self) -> Iterator[Stuck]:
        """Yield the candidates that do not run, and should; not those that are parked."""
        parked = {mid for mid, _ in islice(self._queries.parked_now(), STUCK_LOOKED_AT)}
        flagged = islice(self._queries.candidates(), STUCK_LOOKED_AT)
        records = [record for record in flagged if record.mid not in parked]
        starts = self._queries.starts([record.mid for record in records])
        for record, start in zip(records, starts, strict=True):
            owner = self._owner_of(start)
            age = self._age(owner, record.last_seen)
            if any(stays(record.queue, record.task) for stays in self._kept_waiting):
                continue
            runs = record.state == State.DLNG and owner.lives
            if not runs and is_stuck(StuckKind.CANDIDATE, age, owner.lives, activation=self._activation):
                why = "flagged as a candidate, and not run since" + _said(owner)
                cure = self._cure(record.queue, command(f"poison show {argument(record.id)}"))
                yield Stuck(StuckKind.CANDIDATE, record.id, record.queue, self._now - age, age, why, cure)

    def parked(self) -> Iterator[Stuck]:
        """Yield the parked messages that nothing is in the way of."""
        waiting = list(islice(self._queries.parked_now(), STUCK_LOOKED_AT))
        starts = self._queries.starts([mid for mid, _ in waiting])
        awaited, times = self._queries.awaited_by(mid for mid, _ in waiting)
        asked = self._still_awaited if awaited else ()
        still_awaited = {*gather(asked, self._complain, self._ledger, awaited)}
        for (mid, (_, number, copy)), start in zip(waiting, starts, strict=True):
            if mid in still_awaited or any(stays("", copy.task) for stays in self._kept_waiting):
                continue
            owner = self._owner_of(start)
            earlier = None if owner.lives else self._queries.lineage(copy.id)
            age = self._age(
                owner, max(number, times.get(mid, 0)) / 1000, earlier.last_seen if earlier else None
            )
            # Until a worker has a cell for it, it is a suspect that is not stuck.
            waits = copy.alone > 0 and self._has_cells and copy.queue in self._consumed
            kind, lives = (StuckKind.CANDIDATE, True) if waits else (StuckKind.PARKED, owner.lives)
            if is_stuck(kind, age, lives, activation=self._activation):
                why = "parked, and nothing is left that it has to wait for" + _said(owner)
                cure = self._cure(copy.queue, f"look why it cannot be published: log of {self._monitor}")
                yield Stuck(StuckKind.PARKED, copy.id, copy.queue, self._now - age, age, why, cure)

    @property
    def recovered_after(self) -> float:
        """Seconds after which a dead worker's messages are back."""
        return RECOVERED * self._activation

    def unacked(self, held: Iterable[HeldMessage]) -> Iterator[Stuck]:
        """Yield the unacknowledged messages that no worker holds."""
        for each in held:
            # Another app on this broker has a ledger of its own.
            owner = self._owners.get(each.owner or "", _Owner())
            age = self._age(owner, self._now - each.age)
            kind, visibility = StuckKind.UNACKED, each.visibility
            if not is_stuck(kind, age, owner.lives, activation=self._activation, visibility=visibility):
                continue
            if (names := each.read()) is not None:  # else it was acknowledged a moment ago
                id, queue = names
                why = f"received, and not acknowledged; {_HELD[owner.lives].format(owner.name)}"
                cure = self._cure(queue, _by_itself(visibility - each.age, self._now))
                yield Stuck(kind, id or each.tag, queue, self._now - age, age, why, cure)

    def _owner_of(self, start: Start | None) -> _Owner:
        if start is None:
            return _Owner()
        owner = self._owners.get(_boot_id(start.worker), _Owner(False, start.worker))
        return owner if owner.lives or not self._queries.child_lives(start) else owner._replace(lives=True)

    def _age(self, owner: _Owner, *heard: float | None) -> float:
        return self._now - max(owner.heard, *(moment or 0.0 for moment in heard))

    def _cure(self, queue: str, else_: str) -> str:
        """Return the cure of a waiting message: a command, or ``else_``; a worker brings a monitor along."""
        if queue and queue not in self._consumed:
            return command(f"worker -Q {shlex.quote(queue)}")
        return else_ if self._monitor else command("poison monitor")


_HELD = {
    None: "by a worker that this ledger does not know",
    True: "{} lives, and knows nothing of it any more",
    False: "{} is gone, and it was not put back",
}


def _said(owner: _Owner) -> str:
    if owner.lives is None:
        return ""
    return f"; {owner.name} has it in hand" if owner.lives else f"; {owner.name} is gone"


def _by_itself(seconds: float, now: float) -> str:
    if seconds < 0:
        return "look for its delivery tag in the workers' logs: it cannot be put back"
    return f"none needed: it is put back when its visibility timeout ends, at {when(now + seconds)}"


def _boot_id(worker: str) -> str:
    return worker.rpartition("/")[2]
