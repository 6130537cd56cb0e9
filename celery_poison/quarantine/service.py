"""Reading what is in quarantine, and deciding about it; ``given_up`` has the rest of the one class."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import islice
from typing import Any

from celery import Celery, states
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from kombu.exceptions import KombuError

from celery_poison import causes, signals
from celery_poison.errors import GivenUp, IllegalTransition, MessageNotFound, PoisonError
from celery_poison.failures import KeptFailure
from celery_poison.ledger.journal import Extent, extent, extract, history
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.quarantine.acting import Case, Listener, Outcomes
from celery_poison.quarantine.body import BodyBroken, BodyRefused, json_of
from celery_poison.quarantine.error_transactions import ErrorTransactions
from celery_poison.quarantine.finding import Finder
from celery_poison.quarantine.releasing import Releasing
from celery_poison.quarantine.search import TYPED, By, Filter, Group, Lookup, one_of
from celery_poison.quarantine.stored import CANVAS, stored_message
from celery_poison.quarantine.story import Detail, remembered
from celery_poison.states import Event, State

# The class has a method named list, which would stand before the type in its annotations.
Records = list[MessageRecord]
Groups = list[Group]
Entries = list[dict[str, str]]


class ResultRefused(PoisonError):
    """The result backend, or the broker for an errback, is away; the message stays in quarantine."""


class Service(Releasing):
    """Messages in quarantine, what is in force for the app, and decisions about both.

    Everybody uses :class:`~celery_poison.quarantine.Quarantine`, which adds what was given up.
    """

    # --- reading -------------------------------------------------------------------------------

    @cached_property
    def finder(self) -> Finder:
        """Finds and counts by the groups of the ledger."""
        return Finder(self._ledger, self.queries)

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
        where = where or Filter()
        if not candidates and (kept := State(state)) in (State.NDLV, State.FAIL):
            return [*self.finder.records(where, kept, offset=offset, limit=limit)]
        if candidates:
            live = self.queries.candidates()
        else:
            live = self.queries.live() if state == State.DLNG else self._to_be_delivered()
        return [*islice(where.choose(live), offset, None if limit is None else offset + limit)]

    def _to_be_delivered(self) -> Iterator[MessageRecord]:
        seen = set()
        for record in self.queries.candidates():
            if record.state == State.TBDL:
                seen.add(record.mid)
                yield record
        yield from (record for record in self.queries.waiting() if record.mid not in seen)

    def groups(self, *, where: Filter | None = None, by: By | str = By.FINGERPRINT) -> Groups:
        """Return what is in quarantine, counted by task, cause and fingerprint, the largest group first.

        Args:
            where: only messages that match; ``Filter.of_group(group)`` are those of one group. Beside task,
                cause and fingerprint (by cause: or queue) each message that may match is read.
            by: ``"cause"``: by task and cause only.
        """
        return self.finder.groups(where or Filter(), By(by))[0]

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

    def _fail(self, force: bool, case: Case) -> None:
        record = case.record
        if record.cause != causes.FAILURE:  # whoever waits for that was told when it failed
            kept = self._row(record.mid)
            self._is_registered(record.task)  # its own backend stores the result, if it has one
            store_failure(self._app, record, kept, note=case.note, force=force)
        self._ledger.give_up(record.mid, Event.FAILED, case.actor, case.note, case.number)
        case.announce(signals.message_failed)

    def _discard(self, case: Case) -> None:
        self._is_registered(case.record.task)  # may have an error transaction of its own
        with ErrorTransactions(self._app, self._ledger).discarding(case.record, self._row, case.note):
            self._ledger.give_up(case.record.mid, Event.DISCARDED, case.actor, case.note, case.number)


# --- failing for good: whoever waits hears of it, through the result backend -----------------------------


def store_failure(
    app: Celery,
    record: MessageRecord,
    kept: Mapping[str, bytes],
    *,
    note: str = "",
    force: bool = False,
) -> None:
    """Store FAILURE for the task, and resolve its chord, its chain and its errbacks, as a worker would.

    As there, an errback that takes ``(request, exc, traceback)`` is called here and now, every other is
    sent to a worker.

    Args:
        kept: the message as the ledger keeps it.
        force: where nobody knows the canvas, tell the task's own caller only.

    Raises:
        IllegalTransition: the task's result is SUCCESS already, or its canvas cannot be known here.
        ResultRefused: the result backend is away or refuses, or the broker does with an errback. What was
            told before that stays told: failing the message again tells it again.
    """
    stored = stored_message(kept)
    known = _canvas(stored, kept.get("canvas"), force)
    task = app.tasks.get(record.task)
    backend = task.backend if task is not None else app.backend
    request = _request(record, stored, known)
    ignored = request.ignore_result or (task is not None and task.ignore_result)
    stores = not ignored or bool(task is not None and task.store_errors_even_if_ignored)
    errors = (*getattr(backend, "connection_errors", ()), *getattr(backend, "channel_errors", ()))
    error = GivenUp(f"given up in quarantine: {record.story}" + (f" ({note})" if note else ""))
    try:
        _refuse_success(backend, record.id)
        backend.mark_as_failure(record.id, error, request=request, store_result=stores, call_errbacks=True)
    except (OSError, KombuError, *errors) as refusal:
        sentence = f"the failure could not be stored, or an errback not be sent: {refusal}"
        raise ResultRefused(sentence) from refusal


def _refuse_success(backend: Any, id: str) -> None:
    # Of rpc:// results lie in the caller's own queue: nobody else can ask for them.
    is_readable = not isinstance(backend, DisabledBackend) and not backend.as_uri().startswith("rpc://")
    if is_readable and backend._get_task_meta_for(id)["status"] == states.SUCCESS:
        raise IllegalTransition("its result is SUCCESS already, so nobody waits for it: discard it instead")


def _canvas(stored: StoredMessage, kept: bytes | None, force: bool) -> dict[str, Any]:
    """Return who waits beside the caller: from the body if it may be read here, else as it was kept."""
    if kept:
        return dict(json.loads(kept))
    try:
        return canvas_in(stored)
    except (BodyBroken, ValueError, TypeError, AttributeError):
        return {}  # no worker could read it either: its result is all that can be told
    except BodyRefused as refusal:
        if force:
            return {}
        raise IllegalTransition(
            f"{refusal}, so that its chord, chain and errbacks are unknown: release it, discard it, or use"
            " force to fail the task alone"
        ) from None


def canvas_in(stored: StoredMessage) -> dict[str, Any]:
    """Return who waits for a task beside its caller, as its body says.

    Raises:
        BodyRefused, BodyBroken, ValueError, TypeError, AttributeError: the body does not tell it here.
    """
    _, _, embed = json_of(stored)
    return {name: (embed or {}).get(name) for name in CANVAS}


def _request(record: MessageRecord, stored: StoredMessage, canvas: Mapping[str, Any]) -> Context:
    """Return what Celery's backends want to know of the task."""
    properties = stored.properties
    return Context(
        {
            **stored.headers,
            **canvas,
            "id": record.id,
            "delivery_info": {},
            "reply_to": properties.get("reply_to"),
            "correlation_id": properties.get("correlation_id"),
        }
    )
