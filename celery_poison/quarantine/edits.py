"""Replacing a message by a changed copy of it (NEW-6); ``editing`` makes the copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from celery_poison.errors import IllegalTransition
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.policy import Policy
from celery_poison.quarantine.arguments import arguments
from celery_poison.quarantine.changed_copy import (
    Call,
    Change,
    call_of,
    changed_call,
    changed_copy,
    check_fits,
    fingerprint_of_copy,
    is_same,
)
from celery_poison.quarantine.decisions import Decisions, Outcome, Outcomes, Request, Reserved
from celery_poison.quarantine.lookup import Lookup
from celery_poison.quarantine.owner import default_actor, refuse_to_run_again
from celery_poison.quarantine.store import Store
from celery_poison.quarantine.stored_message import fields_of, sent_to, stored_message
from celery_poison.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited(Outcome):
    """What became of an edit; ``copy`` is the mid of the changed copy, empty where there is none.

    An edit whose copy could not be released is not ``done``, and has a copy: it waits in quarantine.
    """

    copy: str = ""


class Draft(NamedTuple):
    """A changed copy that is not stored yet."""

    record: MessageRecord
    old: Call
    new: Call
    stored: StoredMessage
    queue: str


class Edits:
    """Changed copies. Raises, ``actor`` and ``note`` as of ``Quarantine``.

    Args:
        release: releases a copy, as ``Quarantine.release``.
    """

    def __init__(self, store: Store, decisions: Decisions, release: Callable[..., Outcomes]) -> None:
        self._store = store
        self._decisions = decisions
        self._release = release

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
        yes_run_again: bool = False,
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
                arguments, or no worker consumes the queue.
            yes_run_again: as of :meth:`release`; without, such a copy can only be held.
        """
        change, copy_mid = Change(args=args, kwargs=kwargs, values=set or {}, queue=queue), uuid4().hex
        request = Request(verb="edit", actor=actor or default_actor(), note=note)
        act = partial(self._edit, change, copy_mid, force, yes_run_again or hold)
        (edited,) = self._decisions.each([id], request, act)
        outcome = {"mid": edited.mid, "id": edited.id, "task": edited.task}
        if hold or not edited.done:
            copy = copy_mid if edited.done else ""
            return Edited(**outcome, done=edited.done, error=edited.error, copy=copy)
        may = {"force": force, "yes_run_again": yes_run_again}
        (released,) = self._release([copy_mid], actor=actor, note=note, **may)
        error = f"edited, and not released: {released.error}" if not released.done else ""
        return Edited(**outcome, done=released.done, error=error, copy=copy_mid)

    def draft(self, id: str, change: Change, *, force: bool = False) -> Draft:
        """Return what :meth:`edit` would make of a message in quarantine; changes nothing.

        Raises:
            MessageNotFound, IllegalTransition: it is not in quarantine.
            IllegalTransition, BodyRefused, BodyBroken: see :meth:`edit`.
        """
        record = Lookup(self._store.queries).find(id, whole=True)
        return self._draft(record, change, "", force)

    def _edit(self, change: Change, copy_mid: str, force: bool, may_run: bool, case: Reserved) -> None:
        refuse_to_run_again(case.record, may_run)
        draft = self._draft(case.record, change, copy_mid, force)
        record, task = case.record, case.record.task
        app, settings, ledger = self._store.app, self._store.settings, self._store.ledger
        shown = arguments(app, settings.redact, task, draft.stored)
        function = Policy.of(app.tasks.get(task), settings).fingerprint
        secret = self._store.queries.fingerprint_secret()
        fingerprint = fingerprint_of_copy(draft.stored, task, secret, function)
        fields = fields_of(draft.stored, fingerprint, shown)
        fields |= {"queue": draft.queue, "payload_bytes": len(draft.stored.body)}
        ledger.decisions.edit(
            record.mid, copy_mid, fields, actor=case.actor, note=case.note, number=case.number
        )

    def _draft(self, record: MessageRecord, change: Change, copy_mid: str, force: bool) -> Draft:
        if record.state != State.NDLV:
            raise IllegalTransition(f"the message is in state {record.state}, not in quarantine")
        is_registered = self._store.is_registered(record.task)  # loads the modules that may define it
        if not is_registered and not force:
            raise IllegalTransition(
                f"no task {record.task!r} is registered in this app, so no worker could run the copy: load"
                " the module that defines it, or use force"
            )
        task, original = self._store.app.tasks.get(record.task), stored_message(self._store.kept(record.mid))
        old = call_of(original)
        new = changed_call(old, change, task)
        queue = change.queue or record.queue
        if is_same(old, new) and queue == record.queue:
            raise IllegalTransition("this changes nothing: release it, or say what to change")
        if not force:
            check_fits(task, new)
            if queue != record.queue:
                self._store.refuse_unless_consumed(queue)
        copy = changed_copy(original, old, new, record.mid, copy_mid)
        return Draft(record, old, new, copy if queue == record.queue else sent_to(copy, queue), queue)
