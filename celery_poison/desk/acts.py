"""Giving messages up, deleting what was given up, and bringing it back (SAP-7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from celery_poison import causes, signals
from celery_poison.basics.calling import within
from celery_poison.broker.publish import Publisher
from celery_poison.desk.decisions import Decisions, Listener, Outcomes, Request, Reserved
from celery_poison.desk.failing import store_failure, tell_worker
from celery_poison.desk.owner import default_actor
from celery_poison.desk.reading import Detail
from celery_poison.desk.store import Store
from celery_poison.errors import IllegalTransition, MessageNotFound
from celery_poison.keep.stored_message import stored_message
from celery_poison.ledger.decisions import WHY_FORCE
from celery_poison.model import MessageRecord
from celery_poison.states import Event, State


class Acts:
    """Acts that end a message, and undo that. Raises, ``actor`` and ``note`` as of ``Quarantine``."""

    def __init__(self, store: Store, decisions: Decisions) -> None:
        self._store = store
        self._decisions = decisions

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

        ``on_failure``, ``after_return`` and the receivers of ``task_failure`` are called in a worker that
        consumes the message's queue, now or when there is one; twice if it dies meanwhile.

        Args:
            force: even if the body is not JSON, so that its chord, chain and errbacks are not known: only
                the task's own caller gets the failure.
        """
        with Publisher(self._store.app) as publisher:
            act = partial(self._fail, force, publisher)
            return self._decisions.each(ids, _request("fail", actor, note), act, on_outcome)

    def discard(
        self, ids: Iterable[str], *, actor: str = "", note: str = "", on_outcome: Listener | None = None
    ) -> Outcomes:
        """Give messages up without a report (FAIL); for messages without a caller that waits."""
        return self._decisions.each(ids, _request("discard", actor, note), self._discard, on_outcome)

    def restore(
        self,
        ids: Iterable[str],
        *,
        actor: str = "",
        note: str = "",
        force: bool = False,
        on_outcome: Listener | None = None,
    ) -> Outcomes:
        """Bring discarded messages back into quarantine, with their history, causes and counts (NDLV).

        Args:
            force: failed and edited ones, too. A caller keeps the failure that it got, and the changed copy
                of an edited one may run beside it.
        """

        def act(case: Reserved) -> None:
            record = case.record
            _refuse_unless_given_up(record, "restored")
            if record.resolution in WHY_FORCE and not force:
                raise IllegalTransition(WHY_FORCE[record.resolution])
            self._store.ledger.decisions.restore(record.mid, case.actor, case.note, force=force)

        return self._decisions.each(ids, _request("restore", actor, note), act, on_outcome)

    def purge(
        self,
        ids: Iterable[str],
        *,
        actor: str = "",
        note: str = "",
        before: Callable[[Detail], object] | None = None,
        on_outcome: Listener | None = None,
    ) -> Outcomes:
        """Delete messages that were given up, for good. Messages in quarantine are refused.

        Args:
            before: is handed each message, without its history, just before it is deleted, so that a copy of
                it can be kept; if it raises, the message stays.

        Raises:
            SecondPersonNeeded: with ``poison_second_person``: so many, and only one has asked for it.
        """

        def act(case: Reserved) -> None:
            record = case.record
            _refuse_unless_given_up(record, "purged; discard or fail it first")
            if before is not None:
                stored = None if record.sent_at else stored_message(self._store.kept(record.mid))
                before(Detail(record, (), stored))
            self._store.ledger.decisions.purge(record.mid, case.actor, case.note)

        return self._decisions.each(ids, _request("purge", actor, note), act, on_outcome)

    def _fail(self, force: bool, publisher: Publisher, case: Reserved) -> None:
        record = case.record
        if record.cause != causes.FAILURE and not record.told:  # else its caller has its failure already
            kept = self._store.row(record.mid)
            self._store.load_tasks()  # its own backend stores the result, if it has one
            store_failure(self._store.app, record, kept, note=case.note, force=force)
            tell_worker(self._store.app, publisher, record, kept, case.note)
        self._store.ledger.decisions.give_up(record.mid, Event.FAILED, case.actor, case.note, case.number)
        case.announce(signals.message_failed)

    def _discard(self, case: Reserved) -> None:
        self._store.is_registered(case.record.task)  # may have an error transaction of its own
        hooks = self._store.plugin.extensions.discarding
        with within(hook(self._store.ledger, case.record, self._store.row, case.note) for hook in hooks):
            self._store.ledger.decisions.give_up(
                case.record.mid, Event.DISCARDED, case.actor, case.note, case.number
            )


def _request(verb: str, actor: str, note: str) -> Request:
    return Request(verb=verb, actor=actor or default_actor(), note=note)


def _refuse_unless_given_up(record: MessageRecord, what: str) -> None:
    if record.state == State.NDLV:
        raise IllegalTransition(f"the message is in quarantine, and cannot be {what}")
    if record.state != State.FAIL:
        raise MessageNotFound(f"the message is in state {record.state}: it was not given up")
