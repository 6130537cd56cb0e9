"""The quarantine as a whole: what is in it, what was given up, and changed copies of messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from celery_poison.errors import IllegalTransition, MessageNotFound
from celery_poison.ledger.given_up import WHY_FORCE
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.policy import Policy
from celery_poison.quarantine.acting import Case, Listener, Outcome, Outcomes
from celery_poison.quarantine.arguments import arguments
from celery_poison.quarantine.careful import refuse_unless_consumed
from celery_poison.quarantine.editing import (
    Call,
    Change,
    call_of,
    changed_call,
    changed_copy,
    check_fits,
    fingerprint_of_copy,
    is_same,
)
from celery_poison.quarantine.search import Lookup
from celery_poison.quarantine.stored import fields_of, sent_to, stored_message
from celery_poison.quarantine.story import Detail
from celery_poison.quarantine.transfer import Transfer
from celery_poison.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited(Outcome):
    """What became of an edit; ``copy`` is the mid of the changed copy, empty where there is none.

    An edit whose copy could not be released is not ``done``, and has a copy: it waits in quarantine.
    """

    copy: str = ""


class Draft(NamedTuple):
    """A changed copy that nobody has stored yet."""

    record: MessageRecord
    old: Call
    new: Call
    stored: StoredMessage
    queue: str


class Quarantine(Transfer):
    """Messages in quarantine, those given up, and what a person can do about both (SAP-7).

    Acts on messages take whole ids (mids or task ids) and ``on_outcome``, which hears of each message at
    once, and return one :class:`Outcome` for each id; one message's refusal does not stop the others. Every
    act takes ``actor`` (who decided; default: login@host) and ``note`` (why), both journalled.

    Args:
        app: the Celery app; the plugin is installed on it if it is not yet.

    Every method raises ``LedgerUnavailable`` when Redis is away or refuses, and loses nothing then; acts
    raise ``SchemaMismatch`` when the ledger belongs to another app.

    >>> Quarantine(app).release([record.mid], actor="ann", note="fixed in 1.2.3")
    """

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
            force: failed and edited ones, too. That a caller was told of a failure is not taken back, and
                the changed copy of an edited one may run beside it.
        """

        def act(case: Case) -> None:
            record = case.record
            _refuse_unless_given_up(record, "restored")
            if record.resolution in WHY_FORCE and not force:
                raise IllegalTransition(WHY_FORCE[record.resolution])
            self._ledger.restore(record.mid, case.actor, case.note, force=force)

        return self._each(ids, "restore", actor, note, act, on_outcome)

    def purge(
        self,
        ids: Iterable[str],
        *,
        actor: str = "",
        note: str = "",
        before: Callable[[Detail], object] | None = None,
        on_outcome: Listener | None = None,
    ) -> Outcomes:
        """Delete messages that were given up, for good. What is in quarantine is refused.

        Args:
            before: is handed each message, without its history, just before it is deleted, so that a copy of
                it can be kept; if it raises, the message stays.

        Raises:
            SecondPersonNeeded: with ``poison_second_person``: so many, and only one has asked for it.
        """

        def act(case: Case) -> None:
            record = case.record
            _refuse_unless_given_up(record, "purged; discard or fail it first")
            if before is not None:
                before(Detail(record, (), None if record.sent_at else self.message(record.mid)))
            self._ledger.purge(record.mid, case.actor, case.note)

        return self._each(ids, "purge", actor, note, act, on_outcome)

    def edit(
        self,
        id: str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        set: Mapping[str, Any] | None = None,
        queue: str = "",
        hold: bool = False,
        actor: str = "",
        note: str = "",
        force: bool = False,
    ) -> Edited:
        """Release a changed copy of a message; the original is given up and stays until it is purged (NEW-6).

        The copy has the task id of the original, so that its result, chord, chain and errbacks are the
        original's, and a mid of its own. Both name each other.

        Args:
            args, kwargs: all positional, all named arguments, instead of the original's.
            set: name -> value of single arguments; a positional one by the name of its parameter.
            queue: send it there.
            hold: leave the copy in quarantine, for :meth:`release`.
            force: even if no task of that name is registered in this app, the task does not take such
                arguments, or nobody consumes the queue.
        """
        change, copy_mid = Change(args=args, kwargs=kwargs, values=set or {}, queue=queue), uuid4().hex
        act = partial(self._edit, change, copy_mid, force)
        (edited,) = self._each([id], "edit", actor, note, act, None)
        outcome = {"mid": edited.mid, "id": edited.id, "task": edited.task}
        if not edited.done:
            return Edited(**outcome, done=False, error=edited.error)
        if hold:
            return Edited(**outcome, done=True, copy=copy_mid)
        (released,) = self.release([copy_mid], actor=actor, note=note, force=force)
        error = f"edited, and not released: {released.error}" if not released.done else ""
        return Edited(**outcome, done=released.done, error=error, copy=copy_mid)

    def call(self, id: str) -> tuple[MessageRecord, Call]:
        """Return a message in quarantine and what it calls its task with; raises as :meth:`draft`."""
        record = Lookup(self.queries).find(id, whole=True)
        return record, call_of(stored_message(self._kept(record.mid)))

    def draft(self, id: str, change: Change, *, force: bool = False) -> Draft:
        """Return what :meth:`edit` would make of a message in quarantine; changes nothing.

        Raises:
            MessageNotFound, IllegalTransition: it is not in quarantine.
            IllegalTransition, BodyRefused, BodyBroken: see :meth:`edit`.
        """
        record = Lookup(self.queries).find(id, whole=True)
        return self._draft(record, change, "", force)

    def _edit(self, change: Change, copy_mid: str, force: bool, case: Case) -> None:
        draft = self._draft(case.record, change, copy_mid, force)
        record, task = case.record, case.record.task
        shown = arguments(self._app, self._plugin.settings.redact, task, draft.stored)
        function = Policy.of(self._app.tasks.get(task), self._plugin.settings).fingerprint
        fingerprint = fingerprint_of_copy(draft.stored, task, self.queries.fingerprint_secret(), function)
        fields = fields_of(draft.stored, fingerprint, shown)
        fields |= {"queue": draft.queue, "payload_bytes": len(draft.stored.body)}
        self._ledger.edit(record.mid, copy_mid, fields, actor=case.actor, note=case.note, number=case.number)

    def _draft(self, record: MessageRecord, change: Change, copy_mid: str, force: bool) -> Draft:
        if record.state != State.NDLV:
            raise IllegalTransition(f"the message is in state {record.state}, not in quarantine")
        is_registered = self._is_registered(record.task)  # loads the modules that may define it
        if not is_registered and not force:
            raise IllegalTransition(
                f"no task {record.task!r} is registered in this app, so no worker could run the copy: load"
                " the module that defines it, or use force"
            )
        task, original = self._app.tasks.get(record.task), stored_message(self._kept(record.mid))
        old = call_of(original)
        new = changed_call(old, change, task)
        queue = change.queue or record.queue
        if is_same(old, new) and queue == record.queue:
            raise IllegalTransition("this changes nothing: release it, or say what to change")
        if not force:
            check_fits(task, new)
            if queue != record.queue:
                refuse_unless_consumed(queue, self._app, self.queries)
        copy = changed_copy(original, old, new, record.mid, copy_mid)
        return Draft(record, old, new, copy if queue == record.queue else sent_to(copy, queue), queue)


def _refuse_unless_given_up(record: MessageRecord, what: str) -> None:
    if record.state == State.NDLV:
        raise IllegalTransition(f"the message is in quarantine, and cannot be {what}")
    if record.state != State.FAIL:
        raise MessageNotFound(f"the message is in state {record.state}: nobody has given it up")
