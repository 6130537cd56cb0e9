"""One class for every act on quarantined messages; the command line, Flower and Python share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import islice

from celery import Celery

from celery_poison import signals
from celery_poison.broker.publish import Publisher
from celery_poison.errors import IllegalTransition, MessageNotFound
from celery_poison.ledger.census import Census, Headcount
from celery_poison.ledger.journal import Extent, extent, extract, history
from celery_poison.ledger.queries import Queries
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.plugin import plugin_of
from celery_poison.quarantine.acting import Acting, Case
from celery_poison.quarantine.filters import Filter
from celery_poison.quarantine.groups import By, Group, grouped
from celery_poison.quarantine.lookup import Lookup
from celery_poison.quarantine.outcome import Listener, Outcome
from celery_poison.quarantine.owner import check_owner, default_actor
from celery_poison.quarantine.result import store_failure
from celery_poison.quarantine.stored import canvas_of, publish_release, stored_message
from celery_poison.states import Event, State

# The class has a method named list, which would stand before the type in its annotations.
Records = list[MessageRecord]
Outcomes = list[Outcome]
Groups = list[Group]
Entries = list[dict[str, str]]


class Quarantine:
    """Messages in quarantine, and what a person can do about them (SAP-7).

    Every act takes ids (mids or task ids), ``actor`` (who decided; default: login@host) and ``note``
    (why), both journalled, and ``on_outcome``, which hears of each message at once. It returns one
    :class:`Outcome` for each id. One message's refusal does not stop the others.

    Args:
        app: the Celery app; the plugin is installed on it if it is not yet.

    Attributes:
        census: who is in quarantine; to be replaced where this process keeps that already.

    Every method raises ``LedgerUnavailable`` when Redis is away or refuses, and loses nothing then; acts
    raise ``SchemaMismatch`` when the ledger belongs to another app.

    >>> Quarantine(app).release([record.mid], actor="ann", note="fixed in 1.2.3")
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._plugin = plugin_of(app)
        self._ledger = self._plugin.open_ledger()
        self.queries = Queries(self._ledger)
        self.census: Headcount = Census(self._ledger)

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
        records = self._records(State(state), candidates, where)
        matching = (record for record in records if where is None or where.matches(record))
        return [*islice(matching, offset, None if limit is None else offset + limit)]

    def _records(self, state: State, candidates: bool, where: Filter | None) -> Iterator[MessageRecord]:
        if candidates:
            return self.queries.candidates()
        if state is State.NDLV and where is not None and (rough := where.of_the_census()):
            return self._in_quarantine(rough)
        if state in (State.NDLV, State.FAIL):
            return self.queries.kept(state)
        if state is State.DLNG:
            return self.queries.live()
        return self._to_be_delivered()

    def _in_quarantine(self, rough: Filter) -> Iterator[MessageRecord]:
        mids = (inmate.mid for inmate in self.census.take() if rough.matches(inmate))
        # Somebody may have let one go since the census was taken.
        return (record for record in self.queries.records(mids) if record and record.state == State.NDLV)

    def _to_be_delivered(self) -> Iterator[MessageRecord]:
        seen = set()
        for record in self.queries.candidates():
            if record.state == State.TBDL:
                seen.add(record.mid)
                yield record
        yield from (record for record in self.queries.waiting() if record.mid not in seen)

    def groups(self, *, where: Filter | None = None, by: By | str = By.FINGERPRINT) -> Groups:
        """Return what is in quarantine, counted by task, cause and fingerprint, the largest group first.

        This is one walk through everything that is kept; without ``where``, further calls on the same object
        read only what came since. No counters are held that could disagree with what is kept.

        Args:
            where: only messages that match; ``Filter.of_group(group)`` are those of one group.
            by: ``"cause"``: by task and cause only.
        """
        messages = self.census.take() if where is None else self.list(where=where)
        return grouped(messages, By(by))

    def get(self, id: str) -> MessageRecord:
        """Return the record of a message, by its mid or its task id; see :meth:`Lookup.find`.

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
        """
        return stored_message(self._kept(mid))

    def history(self, id: str) -> Entries:
        """Return what the journal says about a task id, oldest entry first; [] if it says nothing."""
        try:
            record = self.get(id)
        except MessageNotFound:
            return history(self._ledger.client, self._ledger.keys, id)
        kept = record.state in (State.NDLV, State.FAIL)
        until = record.last_seen if kept else None
        return history(
            self._ledger.client, self._ledger.keys, record.id, since=record.first_seen, until=until
        )

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

    def select(self, where: Filter) -> Records:
        """Return the messages in quarantine that an act with this filter would touch."""
        return self.list(where=where)

    # --- acting --------------------------------------------------------------------------------

    def release(
        self,
        ids: Iterable[str],
        *,
        actor: str = "",
        note: str = "",
        force: bool = False,
        on_outcome: Listener | None = None,
    ) -> Outcomes:
        """Publish the stored originals to their own queues; they run alone, on probation (TBDL).

        Args:
            force: release even if no task of that name is registered in this app.
        """
        with Publisher(self._app) as publisher:
            act = partial(self._release, publisher, force)
            return self._each(ids, "release", actor, note, act, on_outcome)

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
        check_owner(self._app, self.queries)
        outcomes = []
        acting = Acting(self._ledger, Lookup(self.queries), verb, actor or default_actor(), note, act)
        for id in ids:
            outcome = acting.on(id)
            outcomes.append(outcome)
            if on_outcome is not None:
                on_outcome(outcome)
        return outcomes

    def _release(self, publisher: Publisher, force: bool, case: Case) -> None:
        record = case.record
        if not force and not self._is_registered(record.task):
            raise IllegalTransition(
                f"no task {record.task!r} is registered in this app, so no worker could run the message:"
                " load the module that defines it, or use force"
            )
        publish_release(publisher, self.message(record.mid), record.queue, case.number)
        self._ledger.released(record.mid, record.id, case.number, case.actor, case.note)
        told = {"message": record.as_dict(), "actor": case.actor, "note": case.note}
        signals.message_released.send(sender=None, **told)

    def _fail(self, force: bool, case: Case) -> None:
        record = case.record
        kept = self._kept(record.mid)
        self._is_registered(record.task)  # its own backend stores the result, if it has one
        store_failure(self._app, record, stored_message(kept), canvas_of(kept), note=case.note, force=force)
        self._ledger.give_up(record.mid, Event.FAILED, case.actor, case.note, case.number)
        told = {"message": record.as_dict(), "actor": case.actor, "note": case.note}
        signals.message_failed.send(sender=None, **told)

    def _discard(self, case: Case) -> None:
        self._ledger.give_up(case.record.mid, Event.DISCARDED, case.actor, case.note, case.number)

    def _kept(self, mid: str) -> dict[str, bytes]:
        raw = self.queries.message(mid)
        if not raw:
            raise MessageNotFound(f"no message {mid!r} in quarantine")
        return raw

    def _is_registered(self, task: str) -> bool:
        return task in self._app.tasks or task in self._all_tasks

    @cached_property
    def _all_tasks(self) -> frozenset[str]:
        # What a worker would load at its start: this process may not have needed those modules so far.
        self._app.loader.import_default_modules()
        return frozenset(self._app.tasks)
