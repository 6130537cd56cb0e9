"""What waits in each queue, and which workers live and consume nothing of it. Changes nothing.

After a lost broker connection a worker may go on beating and answering pings, and never receive again
(https://github.com/celery/celery/issues/8030, https://github.com/celery/celery/issues/9054). Its heartbeat
tells when it last polled or received. RabbitMQ pushes: a worker for which nothing comes hears nothing either.
So a worker that was quiet for long is looked at again, one heartbeat later, and is deaf only if messages
waited for it all the while.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from celery import Celery

from celery_poison.basics.text import count_of, duration, some_of, when
from celery_poison.broker.bounds import bounded_options
from celery_poison.broker.kinds import broker_of
from celery_poison.ledger.fleet_model import WorkerRecord
from celery_poison.ledger.views import Views
from celery_poison.model import Record
from celery_poison.plugin import plugin_of
from celery_poison.rules.limits import Limit, are_set, limit_of
from celery_poison.settings import Settings

#: Seconds. Celery tries to connect anew every half a minute at the latest: that alone is no deafness.
QUIET_FOR = 60.0
#: Seconds in which a message that waits has reached a worker that consumes, and its heartbeat knows of it.
GRACE = 1.0

#: queue -> messages that wait there
Waiting = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Deaf(Record):
    """One worker that lives, has room, and consumes nothing.

    Attributes:
        since: when it was last heard to poll, to receive or to be busy, in seconds of Redis' clock, and
        age: seconds since then.
        waiting: queue -> messages that wait there for it.
    """

    worker: str
    since: float
    age: float
    waiting: Waiting

    @property
    def story(self) -> str:
        messages = count_of(sum(self.waiting.values()), "message")
        waits = "waits" if messages.startswith("1 ") else "wait"
        return (
            f"worker {self.worker} lives and has consumed nothing since {when(self.since)}"
            f" ({duration(self.age)}), while {messages} {waits} in {some_of(self.waiting)}; cure: restart it"
        )


def is_quiet(worker: WorkerRecord) -> bool:
    """Whether a worker that should consume has heard nothing for long, as of its last heartbeat."""
    if not worker.alive or worker.stopping or not worker.queues:
        return False
    # One of an older version, or one that only observes, does not say.
    if worker.heard_at is None or worker.last_beat is None:
        return False
    return worker.last_beat - worker.heard_at > QUIET_FOR


def missed(worker: WorkerRecord, waited_at: float, before: Waiting, now: Waiting) -> dict[str, int]:
    """Return the number of messages that wait for a deaf worker, by queue; {}: it is not deaf.

    Args:
        worker: as its newest heartbeat described it.
        waited_at: when ``before`` was counted, in seconds of Redis' clock.
    """
    if not is_quiet(worker) or (worker.last_beat or 0.0) < waited_at + GRACE:
        return {}
    return {queue: now[queue] for queue in worker.consumed if before.get(queue) and now.get(queue)}


def find_deaf(app: Celery, queries: Views, workers: Iterable[WorkerRecord]) -> tuple[list[Deaf], list[str]]:
    """Return which of ``workers`` are deaf, and why that cannot be known, if it cannot.

    Asks the broker only about workers that are quiet; waits for a heartbeat only if messages wait for them.

    Raises:
        LedgerUnavailable: Redis is away. A broker that is away is in the second list.
    """
    quiet = {worker.worker: worker for worker in workers if is_quiet(worker)}
    try:
        before = waiting_in(app, _shared_queues(app, quiet.values()))
        if not any(before.values()):
            return [], []
        waited_at = queries.now_ms() / 1000
        later = _heard_after(app, queries, quiet, waited_at + GRACE)
        now = waiting_in(app, _shared_queues(app, later))
    except Unread as error:
        return [], [f"{error}: whether {some_of(quiet)} consumes is not known"]
    deaf = []
    for worker in later:
        if waiting := missed(worker, waited_at, before, now):
            since, beat = worker.heard_at or 0.0, worker.last_beat or 0.0  # both are known: it is quiet
            deaf.append(Deaf(worker.worker, since, beat - since, waiting))
    return deaf, []


class Unread(Exception):
    """The broker cannot be read."""


def _heard_after(app: Celery, queries: Views, names: Iterable[str], moment: float) -> list[WorkerRecord]:
    """Return the workers of these names, once each has beaten after ``moment``, or should have."""
    settings, wanted = plugin_of(app).settings, set(names)
    over = time.monotonic() + GRACE + settings.heartbeat_interval + 1
    while True:
        workers = queries.workers(int(settings.activation_interval * 1000))
        consumers = [worker for worker in workers if worker.worker in wanted]
        late = [worker for worker in consumers if worker.alive and (worker.last_beat or 0.0) < moment]
        if not late or time.monotonic() > over:
            return consumers
        time.sleep(0.25)


def _shared_queues(app: Celery, workers: Iterable[WorkerRecord]) -> set[str]:
    """Return the workers' queues, without those where one consumer gets all: others are rightly quiet."""
    names = {name for worker in workers for name in worker.consumed}
    declared = {name: app.amqp.queues[name].queue_arguments for name in names & {*app.amqp.queues}}
    return {name for name in names if not (declared.get(name) or {}).get("x-single-active-consumer")}


def waiting_in(app: Celery, queues: Collection[str]) -> dict[str, int]:
    """Return how many messages wait in these queues; {} where the broker does not count them.

    Raises:
        Unread: the broker does not tell.
    """
    if not queues:
        return {}
    try:
        with app.connection_for_read(transport_options=bounded_options(app)) as connection:
            broker = broker_of(connection)
            if not broker.counts:
                return {}
            return {queue: broker.depth(connection, queue) for queue in sorted(queues)}
    except Exception as error:  # each transport has errors of its own
        raise Unread(f"the broker cannot be read ({type(error).__name__})") from None


# --- backlogs (MSG-3, MSG-7) ----------------------------------------------------------------------

#: Queues whose messages are counted, at most.
QUEUES_ASKED = 200
#: Parked messages, and candidates, that are counted by their queues, at most.
COUNTED_BY_QUEUE = 2000


@dataclass(frozen=True, slots=True)
class Backlog:
    """One queue, or the quarantine.

    Attributes:
        waiting: messages that the broker has not delivered, of the quarantine those in it; None: not known.
        parked: messages of it that wait in the ledger, as far as it is one of the first so many.
        candidates: flagged messages of it, be they waiting, parked or running; of the first so many.
        limit: messages that may wait; None: any number.
    """

    queue: str
    waiting: int | None
    parked: int
    candidates: int
    limit: int | None

    @property
    def warning(self) -> str:
        """A sentence where people should be warned; empty where not."""
        if self.limit is None or self.waiting is None or not Limit(self.limit, False).is_near(self.waiting):
            return ""
        over = self.waiting - self.limit
        how = f"{over} above its limit" if over > 0 else f"{self.waiting * 100 // self.limit} % of its limit"
        return f"queue {self.queue} holds {self.waiting} messages, {how} of {self.limit}"


def read_backlogs(
    app: Celery, queries: Views, workers: Iterable[WorkerRecord], quarantined: int, *, limited_only: bool
) -> tuple[list[Backlog], list[str]]:
    """Return how each queue stands that is consumed, limited, or has messages in the ledger.

    Where no worker lives that consumes, those of the app's configuration count as consumed.
    The second list says why that cannot be known, if it cannot.

    Args:
        limited_only: return nothing unless a queue has a limit.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    settings = plugin_of(app).settings
    if limited_only and not are_set(settings):
        return [], []
    parked = Counter(parking.start.queue for _, parking in islice(queries.parked_now(), COUNTED_BY_QUEUE))
    candidates = Counter(record.queue for record in islice(queries.candidates(), COUNTED_BY_QUEUE))
    known = {queue for each in workers if each.alive for queue in each.all_queues}
    if not known:  # nobody lives who could say what is consumed
        known = {*app.amqp.queues}
    names = known | {*parked} | {*candidates} | {*(settings.queues or {})}
    queues = sorted(names - {"", settings.quarantine_queue})[:QUEUES_ASKED]
    try:
        waiting, unread = waiting_in(app, queues), []
    except Unread as error:
        waiting, unread = {}, [f"{error}: how much waits is not known"]
    consumed = [
        Backlog(queue, waiting.get(queue), parked[queue], candidates[queue], _most(settings, queue))
        for queue in queues
    ]
    if most := _most(settings, settings.quarantine_queue):
        consumed.append(Backlog(settings.quarantine_queue, quarantined, 0, 0, most))
    return consumed, unread


def _most(settings: Settings, queue: str) -> int | None:
    limit = limit_of(settings, queue)
    return limit.most if limit else None
