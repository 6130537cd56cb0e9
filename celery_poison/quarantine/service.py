"""Reading what is in quarantine, and deciding about it; ``given_up`` has the rest of the one class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

from celery.utils.log import get_logger

from celery_poison import causes, signals
from celery_poison.broker.publish import Publisher
from celery_poison.destinations import where_sent
from celery_poison.errors import IllegalTransition, LedgerUnavailable, MessageNotFound, PoisonError
from celery_poison.failures import KeptFailure
from celery_poison.ledger.journal import Extent, extent, extract, history
from celery_poison.ledger.notices import Fact, Notice, leave_notice
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.quarantine.careful import Care, Feed, Pace, queue_of, refuse_unless_consumed
from celery_poison.quarantine.error_transactions import ErrorTransactions
from celery_poison.quarantine.owner import default_actor, refuse_unless_kept
from celery_poison.quarantine.pauses import Pauses
from celery_poison.quarantine.results import store_failure
from celery_poison.quarantine.search import TYPED, By, Filter, Group, Lookup, grouped, one_of
from celery_poison.quarantine.stored import as_released, canvas_of, publish_release, sent_to, stored_message
from celery_poison.quarantine.story import Detail, remembered
from celery_poison.states import Event, State

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one message: done, or refused for a reason.

    ``mid`` is empty if it was not found. Of what a release held back, both ids are the one that was given.
    """

    mid: str
    id: str
    task: str
    done: bool
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Case:
    """One message that is reserved for one person's decision.

    Attributes:
        number: of the decision; a released copy bears it.
    """

    record: MessageRecord
    number: int
    actor: str
    note: str

    def announce(self, signal: Any) -> None:
        """Send one of our signals about it."""
        signal.send(sender=None, message=self.record.as_dict(), actor=self.actor, note=self.note)


#: Hears of each outcome at once, so that nothing is forgotten when Redis goes away in the middle.
Listener = Callable[[Outcome], object]
# The class has a method named list, which would stand before the type in its annotations.
Records = list[MessageRecord]
Outcomes = list[Outcome]
Groups = list[Group]
Entries = list[dict[str, str]]

#: Acts of one atomic step, for which nothing is reserved; and those of which a worker tells Flower.
_AT_ONCE, _NOTICED = ("restore", "purge"), frozenset(Fact)


class Service(Pauses):
    """Messages in quarantine, what is in force for the app, and decisions about both.

    Everybody uses :class:`~celery_poison.quarantine.Quarantine`, which adds what was given up.
    """

    # --- reading -------------------------------------------------------------------------------

    def list(
        self,
        *,
        state: State | str = State.NDLV,
        candidates: bool = False,
        where: Filter | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Records:
        """Return messages in quarantine, newest first.

        Args:
            state: NDLV (in quarantine), FAIL (given up), DLNG (running at this moment) or TBDL (waiting;
                only flagged, released and parked ones, since the others are not on record).
            candidates: what is flagged as a candidate instead, oldest flag first.
            where: only messages that match.
            limit, offset: paging; None: all.
        """
        records: Iterable[MessageRecord] = self._records(State(state), candidates, where)
        if where is not None:
            records = where.choose(records)
        return [*islice(records, offset, None if limit is None else offset + limit)]

    def _records(self, state: State, candidates: bool, where: Filter | None) -> Iterator[MessageRecord]:
        if candidates:
            return self.queries.candidates()
        if state is State.NDLV and where is not None and where.brief.conditions:
            mids = (brief.mid for brief in where.brief.choose(self.queries.briefs()))
            # Somebody may have let one go since.
            return (record for record in self.queries.records(mids) if record and record.state == State.NDLV)
        if state in (State.NDLV, State.FAIL):
            return self.queries.kept(state)
        return self.queries.live() if state is State.DLNG else self._to_be_delivered()

    def _to_be_delivered(self) -> Iterator[MessageRecord]:
        seen = set()
        for record in self.queries.candidates():
            if record.state == State.TBDL:
                seen.add(record.mid)
                yield record
        yield from (record for record in self.queries.waiting() if record.mid not in seen)

    def groups(self, *, where: Filter | None = None, by: By | str = By.FINGERPRINT) -> Groups:
        """Return what is in quarantine, counted by task, cause and fingerprint, the largest group first.

        This is one walk through everything that is kept: no counters are held that could disagree with it.

        Args:
            where: only messages that match; ``Filter.of_group(group)`` are those of one group.
            by: ``"cause"``: by task and cause only.
        """
        if where is not None and where.brief != where:
            return grouped(self.list(where=where), By(by))
        briefs = self.queries.briefs()
        return grouped(briefs if where is None else where.choose(briefs), By(by))

    def get(self, id: str) -> MessageRecord:
        """Return the record of a message, by its mid or its task id, or how one of these begins.

        By mid this is one look into Redis, by task id a walk through everything that is kept.

        Raises:
            MessageNotFound: the ledger knows no such message (healthy ones leave no record).
            AmbiguousId: several messages in quarantine carry this task id.
        """
        return Lookup(self.queries).find(id)

    def message(self, mid: str) -> StoredMessage:
        """Return the original message as it was received.

        Raises:
            MessageNotFound: quarantine keeps no such message.
            IllegalTransition: it is at its named destination.
        """
        return stored_message(self._kept(mid))

    def detail(self, id: str) -> Detail:
        """Return all that is known about a message, also about one that only the journal remembers.

        Raises:
            MessageNotFound: nobody knows it.
            AmbiguousId: several messages in quarantine carry this task id.
        """
        try:
            record = self.get(id)
        except MessageNotFound:
            entries = self.history(id)
            if not entries:
                raise
            return Detail(remembered(entries), entries, None)
        entries = self.history(record.mid if record.quarantined_at else record.id)
        if record.state not in (State.NDLV, State.FAIL):
            return Detail(record, entries, None)
        raw = self._row(record.mid)
        stored = None if "sent_at" in raw else stored_message(raw)
        return Detail(record, entries, stored, KeptFailure.decode(raw.get("failure")))

    def fingerprint_of(self, id: str) -> tuple[str, str]:
        """Return fingerprint and task of a message in quarantine; raises as :meth:`get`."""
        record = self.get(id)
        if not record.fingerprint:
            raise MessageNotFound(f"message {id!r} is not in quarantine: only there a fingerprint is known")
        if record.cause == causes.FAILURE:
            raise IllegalTransition(
                f"message {id!r} is kept for what it raised: its fingerprint tells equal failures, not equal"
                " arguments, so block its task instead"
            )
        return record.fingerprint, record.task

    def history(self, id: str) -> Entries:
        """Return what the journal says about a task id, oldest entry first; [] if it says nothing."""
        read = partial(history, self._ledger.client, self._ledger.keys)
        try:
            record = self.get(id)
        except MessageNotFound:
            entries = read(id) if id else []
            ids = {entry["id"] for entry in entries}
            whole = id if id in ids or not ids or len(id) < TYPED else one_of(id, ids)
        else:
            whole, until = record.id, record.last_seen if record.state in (State.NDLV, State.FAIL) else None
            entries = read(whole, since=record.first_seen, until=until)
        return [entry for entry in entries if entry["id"] == whole]

    def journal(self, *, after: str = "") -> tuple[Extent, Iterator[dict[str, str]]]:
        """Return how far the journal reaches now, and its entries up to there, oldest first.

        Args:
            after: the id of an entry; only what came later is yielded.

        Raises:
            LedgerUnavailable: Redis is not reachable, now or while the entries are read.
        """
        client, keys = self._ledger.client, self._ledger.keys
        reach = extent(client, keys)
        return reach, extract(client, keys, after=after, until=reach.last or "0-0")

    # --- acting --------------------------------------------------------------------------------

    def release(
        self,
        ids: Iterable[str],
        *,
        actor: str = "",
        note: str = "",
        force: bool = False,
        to: str = "",
        care: Care | None = None,
        on_outcome: Listener | None = None,
        on_progress: Callable[[str], object] | None = None,
    ) -> Outcomes:
        """Publish the stored originals to their own queues; they run alone, on probation (TBDL).

        Once one of them has died again or come back, the others are refused, with that as the reason (NEW-6).
        What never reached a task runs as if it had just been sent: it is suspected of nothing.

        Args:
            force: even if this app has no such task, or nobody knows the queue ``to``.
            to: this queue instead of their own. They stay there: put back, retried, or released once more.
            care: how careful; default: ``Care()``.
            on_progress: is told, in sentences, what the release waits for and how far it is.

        Raises:
            IllegalTransition: nobody knows the queue ``to``.
            NotPublished: with ``care.max_waiting``: the broker was away when it was asked what waits.
        """
        if to and not force:
            refuse_unless_consumed(to, self._app, self.queries)
        feed, find_queue = Feed(self._ledger), partial(queue_of, self.queries, to)
        with Publisher(self._app) as publisher:
            pace = Pace(care or Care(), feed, find_queue, publisher.depth, on_progress)
            act, listener = partial(self._release, publisher, force, to), pace.listener(on_outcome)
            outcomes = self._each(pace.let_go([*ids]), "release", actor, note, act, listener)
        for id in pace.held_back:
            outcomes.append(Outcome(mid=id, id=id, task="", done=False, error=pace.why_held_back))
            listener(outcomes[-1])
        return outcomes

    def fail(
        self,
        ids: Iterable[str],
        *,
        actor: str = "",
        note: str = "",
        force: bool = False,
        on_outcome: Listener | None = None,
    ) -> Outcomes:
        """Give messages up: their callers get a failure, chords and errbacks are resolved (FAIL).

        Args:
            force: where the body is not for our eyes, so that nobody knows its chord, chain and errbacks:
                tell the task's own caller only.
        """
        return self._each(ids, "fail", actor, note, partial(self._fail, force), on_outcome)

    def discard(
        self, ids: Iterable[str], *, actor: str = "", note: str = "", on_outcome: Listener | None = None
    ) -> Outcomes:
        """Give messages up without telling anybody (FAIL); nobody should be waiting for them."""
        return self._each(ids, "discard", actor, note, self._discard, on_outcome)

    def _each(
        self,
        ids: Iterable[str],
        verb: str,
        actor: str,
        note: str,
        act: Callable[[Case], None],
        on_outcome: Listener | None,
    ) -> Outcomes:
        self.check_owner()
        outcomes, lookup, actor = [], Lookup(self.queries), actor or default_actor()
        for id in ids:
            outcome = self._decide(lookup, id, verb, actor, note, act)
            outcomes.append(outcome)
            if on_outcome is not None:
                on_outcome(outcome)
        return outcomes

    def _decide(
        self, lookup: Lookup, id: str, verb: str, actor: str, note: str, act: Callable[[Case], None]
    ) -> Outcome:
        """Act on one message; every trouble but a lost Redis is an outcome."""
        found = {"mid": "", "id": id, "task": ""}
        try:
            record = lookup.find(id, whole=True)
            found = {"mid": record.mid, "id": record.id, "task": record.task}
            if verb in _AT_ONCE:
                act(Case(record, 0, actor, note))
            else:
                self._reserved(record, verb, actor, note, act)
        except LedgerUnavailable:
            raise
        except PoisonError as error:
            return Outcome(**found, done=False, error=str(error))
        except Exception as error:
            return Outcome(**found, done=False, error=f"{type(error).__name__}: {error}")
        if verb in _NOTICED:
            self._leave_notice(verb, record)
        return Outcome(**found, done=True)

    def _reserved(
        self, record: MessageRecord, verb: str, actor: str, note: str, act: Callable[[Case], None]
    ) -> None:
        """Act on a message in quarantine while nobody else can."""
        refuse_unless_kept(record, verb)
        number = self._ledger.decide(record.mid, verb, actor, note)
        try:
            act(Case(record, number, actor, note))
        except BaseException:
            self._ledger.undecide(record.mid, number)  # open to everybody again
            raise

    def _leave_notice(self, verb: str, record: MessageRecord) -> None:
        """Let a live worker send the event for it; the decision stands whether that works or not."""
        try:
            leave_notice(self._ledger, Notice(record.id, Fact(verb), record.story, record.mid))
        except LedgerUnavailable as error:
            logger.debug("celery_poison: nobody will announce %s: %s", verb, error)

    def _release(self, publisher: Publisher, force: bool, to: str, case: Case) -> None:
        record = case.record
        if record.task and not force and not self._is_registered(record.task):
            raise IllegalTransition(
                f"no task {record.task!r} is registered in this app, so no worker could run the message:"
                " load the module that defines it, or use force"
            )
        stored = as_released(self._kept(record.mid), record)
        publish_release(publisher, sent_to(stored, to) if to else stored, to or record.queue, case.number)
        self._ledger.released(record.mid, record.id, case.number, case.actor, case.note, to)
        case.announce(signals.message_released)

    def _fail(self, force: bool, case: Case) -> None:
        record = case.record
        if record.cause != causes.FAILURE:  # whoever waits for that was told when it failed
            kept = self._row(record.mid)
            self._is_registered(record.task)  # its own backend stores the result, if it has one
            store_failure(
                self._app, record, stored_message(kept), canvas_of(kept), note=case.note, force=force
            )
        self._ledger.give_up(record.mid, Event.FAILED, case.actor, case.note, case.number)
        case.announce(signals.message_failed)

    def _discard(self, case: Case) -> None:
        self._is_registered(case.record.task)  # may have an error transaction of its own
        with ErrorTransactions(self._app, self._ledger).discarding(case.record, self._row, case.note):
            self._ledger.give_up(case.record.mid, Event.DISCARDED, case.actor, case.note, case.number)

    def _kept(self, mid: str) -> dict[str, bytes]:
        raw = self._row(mid)
        if "sent_at" in raw:
            raise IllegalTransition(where_sent(raw["destination"].decode()))
        return raw

    def _row(self, mid: str) -> dict[str, bytes]:
        """Return the whole hash of a message; its body is empty if it is at its named destination."""
        raw = self.queries.message(mid)
        if not raw:
            raise MessageNotFound(f"no message {mid!r} in quarantine")
        return {"body": b"", **raw}

    def _is_registered(self, task: str) -> bool:
        return task in self._app.tasks or task in self._all_tasks

    @cached_property
    def _all_tasks(self) -> frozenset[str]:
        # What a worker would load at its start: this process may not have needed those modules so far.
        self._app.loader.import_default_modules()
        return frozenset(self._app.tasks)
