"""What leaves the ledger without a person: parked messages, and what does not stay in quarantine.

Every step can be repeated. A monitor that dies between publishing a message and noting it is followed by
another, which publishes it again, from quarantine under a higher number; parked it has the same. Whichever
copy is second is dropped by its number, waits, or is parked again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice

from celery import Celery
from celery.utils.log import get_logger

from celery_poison.basics.calling import gather
from celery_poison.basics.forking import no_fork
from celery_poison.broker.publish import NoSuchQueue, NotPublished, Publisher, Refused
from celery_poison.errors import OVERTAKEN, DecisionPending, Fenced, LedgerUnavailable, MessageNotFound
from celery_poison.failover.turns import whose_turn
from celery_poison.headers import PARK, TRIAL, VERDICT
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.model import Ended, MessageRecord, Parked, ParkingState
from celery_poison.plugin import plugin_of
from celery_poison.quarantine.body import BodyBroken, BodyRefused
from celery_poison.quarantine.failing import canvas_in
from celery_poison.quarantine.lines import line_of
from celery_poison.quarantine.private_files import open_private
from celery_poison.quarantine.stored import (
    PublishRefused,
    as_released,
    publish_release,
    sent_to,
    unpack,
)
from celery_poison.rules.destinations import ACTOR, verdict_header
from celery_poison.settings import Settings
from celery_poison.states import Event, State

logger = get_logger("celery_poison")

#: Seconds for which a finished start is left to the worker that ran it, which forgets it by itself.
COURTESY = 4.0
#: Milliseconds for which the end of a parking is remembered, for copies that come late.
REMEMBER_MS = 24 * 3600 * 1000
#: Seconds between two looks for parkings that may be forgotten: there may be very many, of a whole day.
FORGETTING_PAUSE = 60.0
#: Messages that are moved out of quarantine in one round.
BATCH = 100
#: Seconds before a destination that refused is tried again.
PAUSE = 5.0
#: Of what is deleted: messages of a round, and those that one sync of the disk is for.
MOST, SYNCED = 10_000, 50
#: Who gave that up, in the journal.
RETENTION = "retention"


class Refusals:
    """Names the queues, and the messages, that are left alone for a while after they could not be served.

    Args:
        story: what is logged before the reason, once for each.
    """

    def __init__(self, story: str) -> None:
        self._story = story
        self._until: dict[str, float] = {}
        self._complained: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._until.get(name, 0.0) > time.monotonic()

    def note(self, name: str, error: Exception) -> None:
        now = time.monotonic()
        self._until = {name: until for name, until in self._until.items() if until > now}
        self._until[name] = now + PAUSE
        if str(error) not in self._complained:
            self._complained.add(str(error))
            # Only what brokers say is expected.
            expected = isinstance(error, (NotPublished, PublishRefused))
            logger.warning("celery_poison: %s: %s", self._story, error, exc_info=None if expected else error)


class Parking:
    """Publishes parked messages whose earlier start came to grief (TP1-8), or whose key is free (NEW-12)."""

    def __init__(self, app: Celery, ledger: Ledger, settings: Settings) -> None:
        self._app = app
        self._ledger = ledger
        self._queries = Queries(ledger)
        self._activation_ms = int(settings.activation_interval * 1000)
        self._trial_queue = settings.trial_queue if settings.trial == "queue" else ""
        #: Tokens that parked messages waited for and that have finished, and since when that is known here.
        self._finished: dict[str, float] = {}
        self._refusals = Refusals("a parked message cannot be published again yet")
        self._next_forgetting = 0.0

    def round(self) -> int:
        """Look at every parked message once; return how many were published again.

        Those whose task is paused stay. A queue that refuses holds up no other (MSG-4).

        Raises:
            LedgerUnavailable: Redis is away; nothing is lost.
        """
        with no_fork():
            published = self._publish_due()
            if time.monotonic() >= self._next_forgetting:
                self._next_forgetting = time.monotonic() + FORGETTING_PAUSE
                self._forget_the_old()
            return published

    def _publish_due(self) -> int:
        before, self._finished = self._finished, {}
        waiting = dict(self._queries.parked_now())
        plugin = plugin_of(self._app)
        for stops in [hook(self._ledger) for hook in plugin.extensions.stops] if waiting else []:
            waiting = {mid: each for mid, each in waiting.items() if not stops("", each.start.task)}
        # Most of them wait for what runs: that much is known of many at once.
        waiting_still = self._queries.under_way(waiting)
        if awaited := self._queries.awaited_by(mid for mid in waiting if mid not in waiting_still):
            hooks = plugin.extensions.still_awaited
            waiting_still |= {*gather(hooks, plugin.complain, self._ledger, awaited)}
        free = {mid: parked for mid, parked in waiting.items() if mid not in waiting_still}
        due = [(mid, parked) for mid, parked in self._that_may_run(free) if self._is_due(mid, parked, before)]
        return self._publish(due) if due else 0

    def _that_may_run(self, waiting: Mapping[str, Parked]) -> Iterator[tuple[str, Parked]]:
        """Yield what is parked, of suspects those that a worker has a cell for."""
        suspects = {} if self._trial_queue else {m: each for m, each in waiting.items() if each.start.alone}
        yield from ((mid, parked) for mid, parked in waiting.items() if mid not in suspects)
        if suspects:
            yield from whose_turn(self._queries, suspects, self._activation_ms)

    def _forget_the_old(self) -> None:
        horizon = self._queries.now_ms() - REMEMBER_MS
        for mid, parked, raw in self._queries.parked():
            # No copy will ask for it any more.
            if parked.state in (ParkingState.FINISHED, ParkingState.KEPT) and parked.number < horizon:
                self._ledger.forget(mid, raw)

    def _is_due(self, mid: str, parked: Parked, finished: dict[str, float]) -> bool:
        """Whether no start of it is left: those that finish take its parking along."""
        recorded = self._ledger.look(mid, parked.start.id, self._activation_ms)
        if recorded.start is not None and recorded.ended is Ended.DONE:
            token, now = recorded.start.token, time.monotonic()
            since = self._finished[token] = finished.get(token, now)
            if now - since > COURTESY:  # its acknowledgement was lost with its connection
                self._ledger.clean_up([(mid, token)])
            return False
        return not recorded.is_in_the_way

    def _publish(self, due: list[tuple[str, Parked]]) -> int:
        published = 0
        with Publisher(self._app) as publisher:
            for mid, parked in due:
                alone = parked.start.alone and bool(self._trial_queue)
                queue = self._trial_queue if alone else parked.start.queue
                if queue in self._refusals or mid in self._refusals:
                    continue
                try:
                    published += self._publish_one(publisher, mid, parked, queue)
                except (LedgerUnavailable, Fenced):
                    raise
                except Refused as error:
                    self._refusals.note(queue, error)
                except NotPublished as error:
                    self._refusals.note("", error)
                    break  # the broker is away: each of the others would wait for it as long
                except Exception as error:
                    self._refusals.note(mid, error)
        return published

    def _publish_one(self, publisher: Publisher, mid: str, parked: Parked, queue: str) -> bool:
        packed = self._queries.parcel(mid)
        if packed is None:
            return False  # it is over, since a moment ago
        original = unpack(packed)
        headers = {name: value for name, value in original.headers.items() if name != TRIAL}
        if parked.start.alone and self._trial_queue:
            headers[TRIAL] = parked.start.queue
        publisher.publish(original, queue, {**headers, PARK: parked.number})
        return self._ledger.unpark(mid, parked.number)


class Outgoing:
    """Moves on what goes to a named destination, or back to its own queue (WAS-4, WAS-5).

    Until the broker has confirmed a message, it is in quarantine. A destination that refuses holds up nobody:
    its messages stay in quarantine and are tried again (WAS-8, MSG-4).
    """

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._queries = Queries(ledger)
        self._refusals = Refusals("a message cannot leave quarantine yet, and is tried again")

    def round(self) -> int:
        """Move what is due; return how many messages have left.

        Raises:
            LedgerUnavailable: Redis is away; nothing is lost.
        """
        with no_fork():
            mids = self._queries.outgoing(BATCH)
            if not mids:
                return 0
            with Publisher(self._app) as publisher:
                records = zip(mids, self._queries.records(mids), strict=True)
                return sum(self._move(publisher, mid, record) for mid, record in records)

    def _move(self, publisher: Publisher, mid: str, record: MessageRecord | None) -> bool:
        queue = record.destination or record.queue if record else ""
        if queue in self._refusals:
            self._ledger.postpone(mid, PAUSE)  # out of the way of those that can go
            return False
        try:
            number = self._ledger.decide(mid, *_decision(record))
            try:
                if record is None:  # it came back to quarantine a moment ago
                    raise MessageNotFound(mid)
                self._publish(publisher, record, number)
            except BaseException:
                self._ledger.undecide(mid, number)
                raise
        except DecisionPending:
            self._ledger.postpone(mid, PAUSE)
        except OVERTAKEN:
            pass
        except (LedgerUnavailable, Fenced):
            raise
        except Exception as error:  # the queue's, or its own
            self._refusals.note(queue if isinstance(error, PublishRefused) else mid, error)
            self._ledger.postpone(mid, PAUSE)
        else:
            return True
        return False

    def _publish(self, publisher: Publisher, record: MessageRecord, number: int) -> None:
        raw = self._queries.message(record.mid)
        if "body" not in raw:
            raise MessageNotFound(record.mid)
        stored = as_released(raw, record)
        if not record.destination:
            publish_release(publisher, stored, record.queue, number)
            _, actor, note = _decision(record)
            self._ledger.released(record.mid, record.id, number, actor, note)
            return
        copy = sent_to(stored, record.destination)
        copy = replace(copy, headers={**copy.headers, VERDICT: verdict_header(record)})
        try:
            publish_release(publisher, copy, record.destination, number)
        except PublishRefused as error:
            if not isinstance(error.__cause__, NoSuchQueue):
                raise
            with suppress(NotPublished):
                publisher.declare(record.destination)
            publish_release(publisher, copy, record.destination, number)
        canvas = ""
        if "canvas" not in raw:
            with suppress(BodyBroken, BodyRefused, ValueError, TypeError, AttributeError):
                canvas = json.dumps(canvas_in(stored))
        self._ledger.sent(record.mid, number, ACTOR, canvas)


def _decision(record: MessageRecord | None) -> tuple[str, str, str]:
    """Return why a message leaves: verb, actor and note of the decision."""
    if record is not None and record.destination:
        return "send", ACTOR, ""
    if record is not None and record.releases_left:
        return "again", record.actor, record.note
    return "retry", ACTOR, "after poison_blocked_retry_timeout"


class Retention:
    """Deletes what was kept for longer than ``poison_quarantine_keep``, once it is safe in a file (NEW-6).

    A message is written to a file and synced before anything of it is deleted, by the steps with which a
    person discards and purges. A monitor that dies between leaves it in the ledger, or among what was given
    up: the next round, or after as long again a later one, writes it once more and goes on. Import takes
    each line once.
    """

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self._ledger = ledger
        self._queries = Queries(ledger)
        self._keep, self._directory = settings.quarantine_keep, settings.quarantine_export
        self._name = settings.namespace
        self._note = f"kept for longer than {settings.quarantine_keep} seconds"

    def round(self) -> int:
        """Export and delete what is too old; return how many messages.

        Nothing of what could not be written is deleted; the log says why.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        if self._keep is None:
            return 0
        deleted = 0
        with no_fork():
            until = self._queries.now_ms() / 1000 - self._keep
            for state in (State.NDLV, State.FAIL):
                mids = [mid for mid, _ in islice(self._queries.index(state, until=until), MOST)]
                for begin in range(0, len(mids), SYNCED):
                    try:
                        deleted += self._delete(state, mids[begin : begin + SYNCED])
                    except OSError as error:
                        logger.error(
                            "celery_poison: old messages stay in quarantine: poison_quarantine_export: %s",
                            error,
                        )
                        return deleted
        return deleted

    def _delete(self, state: State, mids: Sequence[str]) -> int:
        rows = {mid: self._queries.message(mid) for mid in mids}
        # What leaves quarantine by itself is not to be given up on its way.
        leaving = ("destination", "retry_at", "sent_at") if state is State.NDLV else ()
        old = {
            mid: row
            for mid, row in rows.items()
            if row.get("state") == state.encode() and not any(row.get(name) for name in leaving)
        }
        if old:
            self._write([line_of({"body": b"", **row}) for row in old.values()])
        deleted = 0
        for mid in old:
            with suppress(*OVERTAKEN):
                if state is State.NDLV:
                    number = self._ledger.decide(mid, "discard", RETENTION, self._note)
                    self._ledger.give_up(mid, Event.DISCARDED, RETENTION, self._note, number)
                self._ledger.purge(mid, RETENTION, self._note)
                deleted += 1
        return deleted

    def _write(self, lines: Sequence[str]) -> None:
        """Append to the file of today, which only its owner can read, and wait for the disk."""
        day = datetime.now(UTC).date().isoformat()
        path = os.path.join(self._directory or "", f"{self._name}-{day}.jsonl")
        number = open_private(path, os.O_RDWR | os.O_APPEND)
        with open(number, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
            # Whoever was killed while it wrote has left half a line.
            torn = b"\n" if size and file.read(1) != b"\n" else b""
            file.write(torn + "".join(line + "\n" for line in lines).encode("ascii"))
            file.flush()  # all of it, or an error: a full disk takes a part of what a single write offers
            os.fsync(number)
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(directory)  # else the file's name may be lost with the machine
        finally:
            os.close(directory)
