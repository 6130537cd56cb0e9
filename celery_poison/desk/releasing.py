"""Releasing messages, a batch at a time: each step is one round trip for all of them (SAP-7, NEW-6).

The steps and their order are those of every decision: reserve, publish, complete. A process that dies
between two of them leaves messages that are in quarantine, or there and in their queue: the worker that
receives such a copy completes its release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from celery import Celery

from celery_poison import signals
from celery_poison.broker.port import Parcel
from celery_poison.broker.publish import Publisher
from celery_poison.desk.care import BadCare, Care, Feed, Pace
from celery_poison.desk.chords import refuse_expired_chord
from celery_poison.desk.decisions import (
    Decisions,
    Listener,
    Outcome,
    Outcomes,
    Request,
    Reserved,
    reason_of,
    report_each,
)
from celery_poison.desk.lookup import Lookup
from celery_poison.desk.owner import default_actor, refuse_to_run_again, refuse_unless_kept
from celery_poison.desk.store import Store, require_body
from celery_poison.errors import IllegalTransition, LedgerUnavailable, MessageNotFound, PoisonError
from celery_poison.keep.stored_message import (
    able_to_run,
    as_released,
    parcel_of,
    refusal_of,
    refuse_if_expired,
    sent_to,
)
from celery_poison.model import MessageRecord

#: How the error begins of what was not released since a release stopped.
HELD_BACK = "not released: "
#: Bytes of bodies that are read at a time; one message may have more.
MOST_BYTES = 4_000_000


@dataclass(slots=True)
class Releasable:
    """One message of a batch, and how far its release has come.

    Attributes:
        number: of the decision; 0: it is not reserved.
        error: why it goes no further.
        done: it is released.
    """

    record: MessageRecord
    error: Exception | None = None
    number: int = 0
    done: bool = False

    @classmethod
    def of(cls, id: str, found: MessageRecord | PoisonError) -> Releasable:
        if isinstance(found, MessageRecord):
            return cls(found)
        return cls(MessageRecord(id=id, mid="", task="", queue="", state=""), found)

    @property
    def outcome(self) -> Outcome:
        error = reason_of(self.error) if self.error else ""
        record = self.record
        return Outcome(mid=record.mid, id=record.id, task=record.task, done=self.done, error=error)


class Releases:
    """Releasing messages, now or later. Raises, ``actor`` and ``note`` as of ``Quarantine``."""

    def __init__(self, store: Store, decisions: Decisions) -> None:
        self._store = store
        self._decisions = decisions

    def release(
        self,
        ids: Iterable[str],
        *,
        actor: str = "",
        note: str = "",
        force: bool = False,
        to: str = "",
        keep_counts: bool = False,
        keep_expiry: bool = False,
        yes_run_again: bool = False,
        care: Care | None = None,
        on_outcome: Listener | None = None,
        on_progress: Callable[[str], object] | None = None,
    ) -> Outcomes:
        """Publish the stored originals to their own queues; they run alone, on probation (TBDL).

        Once one of them has died again or come back, the others are refused, with that as the reason (NEW-6).
        A message that never reached a task runs as if it had just been sent.

        Args:
            force: even if this app has no such task, the queue ``to`` is not known, or the chord that waits
                for it can no longer be resolved.
            to: this queue instead of their own. They stay there: put back, retried, or released once more.
            keep_counts: ``strikes`` and ``failures`` are counted on; those of before convict no more.
            keep_expiry: refuse what has expired, and keep the time to live that it had in RabbitMQ.
                Default: it leaves without either, since what a person releases is to run (NEW-26).
            yes_run_again: also what has begun and whose task says ``rerun=False`` (NEW-16).
            care: how careful; default: ``Care()``.
            on_progress: called with a sentence about what the release waits for, and how far it is.

        Raises:
            IllegalTransition: the queue ``to`` is not known.
            SecondPersonNeeded: with ``poison_second_person``: so many, and only one has asked for it.
            NotPublished: with ``care.max_waiting``: the broker was away when it was asked what waits.
        """
        if to and not force:
            self._store.refuse_unless_consumed(to)
        keep = {"keep_counts": keep_counts, "keep_expiry": keep_expiry}
        how = {"force": force, "yes_run_again": yes_run_again, **keep}
        request = Request(verb="release", actor=actor or default_actor(), note=note, to=to, **how)
        return self._release(ids, request, care or Care(), on_outcome, on_progress)

    def schedule(
        self,
        ids: Iterable[str],
        *,
        after: float,
        times: int = 1,
        actor: str = "",
        note: str = "",
        force: bool = False,
        yes_run_again: bool = False,
        on_outcome: Listener | None = None,
    ) -> Outcomes:
        """Have the active monitor release messages after a pause, and again if they come back (NEW-6).

        For causes that pass by themselves. The plan is stored in Redis. A second schedule of a
        message replaces the first; a release, or giving the message up, ends it.

        Args:
            after: seconds until each release, counted from now, or from when it came back.
            times: releases at most, the first included.
            force: even if this app has no such task.
            yes_run_again: as of :meth:`release`, for the first: what comes back then stays.

        Raises:
            BadCare: ``after`` or ``times`` is not above zero.
            SecondPersonNeeded: as :meth:`release`.
        """
        if not (after > 0 and times > 0):
            raise BadCare(f"after is {after}, times is {times}: both must be above zero")

        def act(case: Reserved) -> None:
            refuse_to_run_again(case.record, yes_run_again)
            if (why := None if force else _unknown_task(self._store, case.record)) is not None:
                raise why
            self._store.ledger.decisions.schedule(case.record.mid, after, times, case.actor, case.note)

        request = Request(verb="schedule", actor=actor or default_actor(), note=note)
        return self._decisions.each(ids, request, act, on_outcome)

    def unschedule(
        self, ids: Iterable[str], *, actor: str = "", note: str = "", on_outcome: Listener | None = None
    ) -> Outcomes:
        """Keep messages in quarantine that would go back to their queue by themselves (NDLV)."""

        def act(case: Reserved) -> None:
            if not self._store.ledger.decisions.schedule(case.record.mid, 0, 0, case.actor, case.note):
                raise IllegalTransition("no release of the message is scheduled")

        request = Request(verb="unschedule", actor=actor or default_actor(), note=note)
        return self._decisions.each(ids, request, act, on_outcome)

    def _release(
        self,
        ids: Iterable[str],
        request: Request,
        care: Care,
        on_outcome: Listener | None,
        say: Callable[[str], object] | None,
    ) -> Outcomes:
        feed = Feed(self._store.ledger, deaths_only=not care.takes_time and say is None)
        self._store.check_owner()
        ids = self._decisions.require_agreement(ids, request)
        with Publisher(self._store.app) as publisher:
            pace = Pace(care, feed, lambda mid: request.to or self._queue_of(mid), publisher.depth, say)
            return report_each(_Batches(self._decisions, request, publisher).outcomes(pace, ids), on_outcome)

    def _queue_of(self, mid: str) -> str:
        record = self._store.queries.record(mid)
        return record.queue if record else ""


class _Batches:
    """One release under way: each batch is reserved, published and completed."""

    def __init__(self, decisions: Decisions, request: Request, publisher: Publisher) -> None:
        self._store = decisions.store
        self._decisions = decisions
        self._request = request
        self._publisher = publisher
        self._lookup = Lookup(self._store.queries)

    def outcomes(self, pace: Pace, ids: Sequence[str]) -> Iterator[Outcome]:
        for batch in pace.let_go(ids):
            while batch:
                attempts = self._attempt(batch)
                for each in attempts:
                    if each.done:
                        pace.note_release(each.record.id)
                    yield each.outcome
                batch = batch[len(attempts) :]
        for id in pace.held_back:
            yield Outcome(mid=id, id=id, task="", done=False, error=f"{HELD_BACK}{pace.stopped_by}")

    def _attempt(self, ids: Sequence[str]) -> list[Releasable]:
        """Release the first of these messages, at least one; return what became of those that were tried."""
        attempts = _together(map(Releasable.of, ids, self._lookup.find_each(ids)))
        try:
            self._reserve(attempts)
            tried = self._publish(attempts)
            self._complete(attempts[:tried])
        finally:
            # Open to every act again; also after Ctrl-C or a lost Redis, as far as it hears of that.
            left = [(each.record.mid, each.number) for each in attempts if each.number and not each.done]
            if left:
                with suppress(LedgerUnavailable):
                    self._store.ledger.decisions.undecide_each(left)
        released = [each for each in attempts if each.done]
        actor, note = self._request.actor, self._request.note
        for each in released:
            Reserved(each.record, each.number, actor, note).announce(signals.message_released)
        self._decisions.leave_notices("release", [each.record for each in released])
        return attempts[:tried]

    def _reserve(self, attempts: Sequence[Releasable]) -> None:
        for each in attempts:
            if each.error is None:
                each.error = self._why_not(each)
        allowed = [each for each in attempts if each.error is None]
        mids, verb = [each.record.mid for each in allowed], "keep" if self._request.keep_counts else "release"
        decided = self._store.ledger.decisions.decide_each(
            mids, verb, self._request.actor, self._request.note
        )
        for each, number in zip(allowed, decided, strict=True):
            if isinstance(number, int):
                each.number = number
            else:
                each.error = number

    def _why_not(self, attempt: Releasable) -> PoisonError | None:
        try:
            why = self._request.why_taken_out
            attempt.record = self._decisions.suspects.take(attempt.record, "release", why)
            refuse_unless_kept(attempt.record, "release")
            refuse_to_run_again(attempt.record, self._request.yes_run_again)
        except IllegalTransition as error:
            return error
        return None if self._request.force else _unknown_task(self._store, attempt.record)

    def _publish(self, attempts: Sequence[Releasable]) -> int:
        """Publish what is reserved; return how many attempts were dealt with, the first ones."""
        reserved = [each for each in attempts if each.number]
        parcels: list[Parcel] = []
        raws = self._store.queries.originals(a.record.mid for a in reserved)
        for each, raw in zip(reserved, raws, strict=True):
            try:
                parcels.append(_parcel(self._store.app, self._request, each, raw))
            except Exception as error:
                each.error = error
        ready = [each for each in reserved if each.error is None]
        refusals = self._publisher.publish_each(parcels) if parcels else []
        for each, refusal in zip(ready, refusals, strict=False):
            each.error = refusal_of(refusal) if refusal else None
        untried = ready[len(refusals) :]
        return attempts.index(untried[0]) if untried else len(attempts)

    def _complete(self, attempts: Sequence[Releasable]) -> None:
        published = [each for each in attempts if each.number and each.error is None]
        releases = [(each.record.mid, each.record.id, each.number) for each in published]
        actor, note, to = self._request.actor, self._request.note, self._request.to
        errors = self._store.ledger.decisions.complete_releases(releases, actor, note, to)
        for each, error in zip(published, errors, strict=True):
            each.error, each.done = error, error is None


def _unknown_task(store: Store, record: MessageRecord) -> PoisonError | None:
    """Return why this app's workers could not run a message; None: they can."""
    if not record.task or store.is_registered(record.task):
        return None
    return IllegalTransition(
        f"no task {record.task!r} is registered in this app; whether a worker knows it cannot be seen from"
        " here: load the module that defines it, or use --force"
    )


def _parcel(app: Celery, request: Request, attempt: Releasable, raw: dict[str, bytes]) -> Parcel:
    record = attempt.record
    if not raw:
        raise MessageNotFound(f"no message {record.mid!r} in quarantine")
    stored = as_released(require_body({"body": b"", **raw}), record)
    if not request.force:
        refuse_expired_chord(app, record, raw, stored)
    if request.keep_expiry:
        refuse_if_expired(stored)
    else:
        stored = able_to_run(stored)
    return parcel_of(
        sent_to(stored, request.to) if request.to else stored, request.to or record.queue, attempt.number
    )


def _together(attempts: Iterable[Releasable]) -> list[Releasable]:
    """Return the first of them: as many as memory is to hold, and no message twice."""
    taken: list[Releasable] = []
    seen, room = set[str](), MOST_BYTES
    for each in attempts:
        record = each.record
        room -= record.payload_bytes
        if taken and (room < 0 or (record.mid and record.mid in seen)):
            break
        seen.add(record.mid)
        taken.append(each)
    return taken
