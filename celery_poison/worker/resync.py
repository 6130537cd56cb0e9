"""What a worker does when the ledger's Redis may have forgotten something.

A Redis that was restarted has lost what was not on disk, a replica that was promoted what had not reached it.
The workers remember, and tell it again: the processes that run tasks what they are running, first thing on a
new connection; the main process what has ended. Until all of them have, nothing that Redis says about a
message is final, and one that came from its queue may be delivered once more as if for the first time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.broker.books import Books
from celery_poison.broker.kinds import broker_of
from celery_poison.broker.port import Broker
from celery_poison.errors import StaleDelivery
from celery_poison.ledger import Ledger, connection
from celery_poison.ledger.writer import Writer
from celery_poison.model import Ended, Phase, Start
from celery_poison.worker.health import Health
from celery_poison.worker.inflight import BATCH, FOR_A_COPY, Acknowledged, DeferredCleanup, InFlight
from celery_poison.worker.site import Site
from celery_poison.worker.threads import Retry

logger = get_logger("celery_poison")

#: The longest pause, in seconds, between two repetitions, where a Redis refuses something all the time.
LONGEST_PAUSE = 60.0
#: Seconds within which every worker that lives has noticed, and has told again what it is running.
TELL_AGAIN = 1.0


class ResyncWindow:
    """The memory of the ledger's Redis and of the broker's, as far as it is in doubt.

    Args:
        grace: seconds for which a message may come back as if for the first time.
        tell_again: seconds within which every worker has told again what it is running.
    """

    def __init__(self, grace: float, tell_again: float = TELL_AGAIN) -> None:
        self.grace = grace
        self._tell_again = tell_again
        self._run_id: str | None = None
        self._whole_at = self._until = 0.0
        self.broker = Broker()

    def met(self, run_id: str, up: float = 0.0) -> bool:
        """Note which Redis the ledger is; return whether it is another one, or has been restarted.

        Args:
            run_id: of its server; empty where it may not be asked.
            up: seconds for which it has been running, where that is known.
        """
        if not run_id or run_id == self._run_id:
            return False
        self._run_id = run_id
        since = time.monotonic() - up
        self._whole_at = since + self._tell_again
        self._until = max(self._until, since + self.grace)
        return True

    def meet_first(self, ledger: Ledger) -> None:
        """Note which Redis the ledger is when the worker begins.

        Raises:
            LedgerUnavailable: it is away.
        """
        run_id, up = connection.who_answers(ledger.client)
        # One that is new and empty can have forgotten nothing.
        has_a_past = ledger.read.journal_age() > up + 1
        self.met(run_id, up if has_a_past else math.inf)

    def reconnected(self) -> None:
        """The broker's connection was lost, perhaps because it was restarted."""
        self._until = time.monotonic() + self.grace

    @property
    def is_suspected(self) -> bool:
        """Whether even a first delivery may be a copy of something that is running, or has ended."""
        broker = self.broker
        return not broker.flags_redelivery or (broker.forgets and time.monotonic() < self._until)

    @property
    def patience(self) -> float:
        """Seconds until the ledger has heard everybody again; 0 when it has."""
        return max(0.0, self._whole_at - time.monotonic())


#: Seconds after a disturbance in which the ledger is compared with what is known here.
RECHECK_FOR = 30.0


@dataclass(eq=False, repr=False)
class Resync:
    """Follows the Redis of one worker's ledger, and tells it again how starts of this worker ended.

    Args:
        writer: of this process; what it writes to a master that Sentinel has replaced is lost.
        pause: seconds between two questions to Sentinel, and between two looks at the ledger after a
            disturbance.

    Attributes:
        broker_is_away: its connection was lost, and there is no other yet.
    """

    site: Site
    writer: Writer
    health: Health
    pause: float
    window: ResyncWindow
    deferred_cleanup: DeferredCleanup
    inflight: InFlight
    books: Books
    broker_is_away = False
    _recheck_until = _next_recheck = 0.0
    _missing = _refusals = 0
    _owes_repeat, _repeat_pause, _next_repeat = False, 1.0, 0.0
    #: Tokens on record that this worker did not know at the last look.
    _unknown: set[str] = field(default_factory=set, init=False)

    def heard_from(self, run_id: str) -> None:
        """Note which Redis answered; report to one that was restarted or replaced what it may not know."""
        if not self.window.met(run_id):
            return
        self.site.plans.renew()
        logger.warning(
            "celery_poison: the ledger's Redis was restarted or replaced, and may have forgotten its last"
            " moments: running messages are reported again, and new ones are looked up before they run"
        )
        self.health.is_another_redis()
        self._follow_master()
        if self.window.broker.forgets:
            self._remind(self.deferred_cleanup.recent())
        self.disturbed()

    def refused(self, times: int) -> None:
        """Repeat what runs, and what has just ended, where Redis has refused something since the last call.

        Args:
            times: how often it has, by heartbeats.
        """
        self._owes_repeat = self._owes_repeat or times != self._refusals
        self._refusals, now = times, time.monotonic()
        if not self._owes_repeat or now < self._next_repeat:
            return
        # Where others are refused all day, as on a cluster whose slots they do not know, this grows rare.
        is_after_rest = now > self._next_repeat + self._repeat_pause
        self._repeat_pause = 1.0 if is_after_rest else min(LONGEST_PAUSE, 2 * self._repeat_pause)
        self._next_repeat, self._owes_repeat = now + self._repeat_pause, False
        self.writer.repeat()
        self._remind(self.deferred_cleanup.recent())
        self.disturbed()

    def connected(self, broker: Broker, *, again: bool) -> None:
        """Keep what ended just now on record: which acknowledgements the broker heard is unknown.

        Args:
            broker: the kind that it is connected to.
            again: there was a connection before.
        """
        self.window.broker = broker
        if again:
            self.window.reconnected()
        self.site.plans.renew()
        self.disturbed()
        keep_for = self.window.grace if self.window.broker.forgets else FOR_A_COPY
        self._remind(self.deferred_cleanup.connection_lost(keep_for))
        self.broker_is_away = False

    def clean_up(self) -> None:
        """Forget what was acknowledged, while there is a broker that has heard of it."""
        # Nothing waits in an idle worker: its event loop is left asleep.
        heard_until = self.site.loop.has_run_until() if self.deferred_cleanup.has_work else 0.0
        if not self.broker_is_away and not self.books.owes_acknowledgements:
            self.deferred_cleanup.clean_up(heard_until)

    def keep(self, end: Acknowledged) -> None:
        """Have it on record that a start ended, for the copy of its message that comes."""
        self.deferred_cleanup.keep([end], FOR_A_COPY)
        self._remind([end], Phase.WENT_BACK)

    def _remind(self, ended: Iterable[Acknowledged], phase: Phase = Phase.RUNNING) -> None:
        if ends := list(ended):
            self.site.background.do(partial(self._tell, ends, phase))

    def _tell(self, ended: list[Acknowledged], phase: Phase) -> None:
        # Redis may have been away until now: what has been forgotten meanwhile is not put on record again.
        on_record, starts = self.deferred_cleanup.tokens(), list[tuple[str, Start, Ended]]()
        for end in (end for end in ended if end.token in on_record):
            worker = f"{self.site.me.node}/{end.token.partition('.')[0]}"
            start = Start.of(end.token, worker, end.id, end.task, phase=phase)
            starts.append((end.mid, start, Ended.DONE))
        try:
            for first in range(0, len(starts), BATCH):
                batch = starts[first : first + BATCH]
                self.deferred_cleanup.missing += self.site.ledger.messages.resync(batch)
        finally:  # what was forgotten in another thread while this waited for Redis is forgotten once more
            still = self.deferred_cleanup.tokens()
            over = [end for end in ended if end.token in on_record and end.token not in still]
            self.deferred_cleanup.keep(over, 0.0)

    def recheck(self) -> None:
        """Take what is over off the ledger, for a while after a disturbance (NEW-9).

        Raises:
            LedgerUnavailable: the next call tries again.
        """
        now = time.monotonic()
        if self.deferred_cleanup.missing != self._missing:
            self._missing = self.deferred_cleanup.missing
            self.disturbed()
        if self._next_recheck <= now < self._recheck_until:
            self._next_recheck = now + self.pause
            self._compare()

    def disturbed(self) -> None:
        """Something may have been lost, or come late, on its way to the ledger."""
        self._recheck_until = time.monotonic() + RECHECK_FOR

    def _compare(self) -> None:
        """End the starts that the ledger takes for running, and this worker has not known for two looks."""
        kept = self.deferred_cleanup.tokens()
        rows = self.site.ledger.read.running()
        mine = [row for row in rows if row[1].worker == self.site.me.worker and row[1].token not in kept]
        unknown = {start.token for _, start, _ in mine if not self.inflight.is_known(start)}
        for mid, start, raw in mine:
            if start.token in unknown & self._unknown:
                self._end(mid, start, raw)
        self._unknown = unknown
        self.deferred_cleanup.take_back_flags(self.site.ledger.read.candidate_ids())

    def _end(self, mid: str, start: Start, raw: bytes) -> None:
        well = self.inflight.how_ended(start.token)
        if well:
            self.site.ledger.messages.resync([(mid, start, Ended.DONE)])
            self.deferred_cleanup.keep(
                [Acknowledged(0.0, mid, start.token, start.id, start.task)], self.window.grace
            )
        elif start.phase == Phase.RUNNING and (well is None or self._must_not_rerun(start.task)):
            with suppress(StaleDelivery):
                self.site.ledger.messages.interrupt(mid, start, cause=causes.UNKNOWN)
        else:
            self.site.ledger.messages.claim(mid, raw, None)

    def _must_not_rerun(self, task: str) -> bool:
        found = self.site.policies.get(task)
        return found is not None and not found[0].rerun

    def follow_master(self) -> None:
        """Follow the master, now and in each interval (in the background thread)."""
        self._follow_master()
        raise Retry(self.pause)

    def _follow_master(self) -> None:
        """Leave a master that Sentinel has replaced; what is written there is lost."""
        left = self.writer.follow()
        if left is not None:
            self.site.loop.call_in_loop(partial(self._leave_broker, left))

    def _leave_broker(self, address: tuple[str, int]) -> None:
        """What the old master still gives to this worker, the new one gives to others (on the event loop)."""
        channel = self.site.loop.consumer.task_consumer.channel
        if broker_of(channel).is_at(channel, address):
            self.site.loop.start_afresh("there is a new master")
