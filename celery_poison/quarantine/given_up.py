"""The quarantine as a whole: what was given up, changed copies, and messages as the lines of a file."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from celery_poison import causes
from celery_poison.errors import IllegalTransition, MessageNotFound, PoisonError
from celery_poison.ledger.quarantine import WHY_FORCE
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.policy import Policy
from celery_poison.quarantine.acting import Case, Listener, Outcome, Outcomes, heard, several, whole
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
from celery_poison.quarantine.owner import default_actor
from celery_poison.quarantine.search import Lookup
from celery_poison.quarantine.service import Service
from celery_poison.quarantine.stored import fields_of, sent_to, stored_message, word
from celery_poison.quarantine.story import Detail
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


#: Of the lines; raised when what is written can no longer be read by who reads this.
VERSION = 1
_NAMES = ("id", "mid", "task", "queue")
_COUNTS = ("deliveries", "crashes", "strikes", "failures", "releases", "pid", "runtime_ms", "first_seen")
_JSON = ("headers", "properties", "canvas", "evidence")
#: All that goes with a message; the rest is its ledger's own affair.
_FIELDS = (
    *(*_NAMES, *_COUNTS, *_JSON, "cause", "reason", "candidate", "worker", "incident", "content_type"),
    *("content_encoding", "arguments", "edited_from", "unprocessable", "fingerprint", "failure"),
)
_NEEDED = ("id", "mid", "queue", "cause", "content_type", "content_encoding", "headers", "properties")


class BadExport(PoisonError):
    """A line is none that ``export`` has written; nothing of it was imported."""


class Quarantine(Service):
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
            force: failed and edited ones, too. A caller keeps the failure that it got, and the changed copy
                of an edited one may run beside it.
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
        """Delete messages that were given up, for good. Messages in quarantine are refused.

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
                arguments, or no worker consumes the queue.
        """
        change, copy_mid = Change(args=args, kwargs=kwargs, values=set or {}, queue=queue), uuid4().hex
        act = partial(self._edit, change, copy_mid, force)
        (edited,) = self._each([id], "edit", actor, note, act)
        outcome = {"mid": edited.mid, "id": edited.id, "task": edited.task}
        if not edited.done:
            return Edited(**outcome, done=False, error=edited.error)
        if hold:
            return Edited(**outcome, done=True, copy=copy_mid)
        (released,) = self.release([copy_mid], actor=actor, note=note, force=force)
        error = f"edited, and not released: {released.error}" if not released.done else ""
        return Edited(**outcome, done=released.done, error=error, copy=copy_mid)

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

    # --- to and from another environment -------------------------------------------------------

    def export(self, ids: Iterable[str]) -> Iterator[str]:
        """Yield messages in quarantine as lines of JSON, each with its body; changes nothing.

        Raises:
            MessageNotFound, AmbiguousId: as :meth:`get`.
            IllegalTransition: it is not in quarantine, or its body is at its named destination.
        """
        lookup = Lookup(self.queries)
        for id in several(ids):
            record = lookup.find(id, whole=True)
            if record.state != State.NDLV:
                raise IllegalTransition(f"message {id!r} is in state {record.state}, not in quarantine")
            yield line_of(whole(self._row(record.mid)))

    def import_(
        self, lines: Iterable[str], *, actor: str = "", note: str = "", on_outcome: Listener | None = None
    ) -> Outcomes:
        """Put exported messages into this quarantine (NDLV); the same line twice is one message.

        A message that is here, or was imported within 30 days, is left as it is: its outcome says so, and is
        ``done``. A line that cannot be imported has the reason as its outcome; the others go on.

        Args:
            lines: as :meth:`export` yields them; import only what you trust as you trust your broker.
        """
        self.check_owner()
        return heard(self._imported(lines, actor, note), on_outcome)

    def _imported(self, lines: Iterable[str], actor: str, note: str) -> Iterator[Outcome]:
        actor, noted = actor or default_actor(), f"imported: {note}" if note else "imported"
        secret = self.queries.fingerprint_secret()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                fields = fields_of_line(line)
            except BadExport as error:
                yield Outcome(mid="", id=f"line {number}", task="", done=False, error=str(error))
                continue
            mid, id, task = (str(fields[name]) for name in ("mid", "id", "task"))
            self._fingerprint(fields, secret)
            new = self._ledger.import_message(mid, id, fields, actor=actor, note=noted)
            told = "" if new else "it is here, or was imported before"
            yield Outcome(mid=mid, id=id, task=task, done=True, error=told)

    def _fingerprint(self, fields: dict[str, str | bytes | int], secret: bytes) -> None:
        """Make its fingerprint that of this ledger: the other one had another key."""
        if fields["cause"] == causes.FAILURE:
            return  # of where it was raised, which no key of ours tells
        raw = {name: value for name, value in fields.items() if isinstance(value, bytes)}
        fields["fingerprint"] = fingerprint_of_copy(stored_message(raw), str(fields["task"]), secret, None)


def _refuse_unless_given_up(record: MessageRecord, what: str) -> None:
    if record.state == State.NDLV:
        raise IllegalTransition(f"the message is in quarantine, and cannot be {what}")
    if record.state != State.FAIL:
        raise MessageNotFound(f"the message is in state {record.state}: it was not given up")


# --- a message as one line: a JSON object, its body as received, in base64, and never decoded here --------


def line_of(raw: Mapping[str, bytes]) -> str:
    """Return one line for the ``message`` hash of a message."""
    # What is not Unicode survives as half a surrogate pair.
    fields = {name: raw[name].decode("utf-8", "surrogateescape") for name in _FIELDS if name in raw}
    return json.dumps({"v": VERSION, **fields, "body_base64": base64.b64encode(raw["body"]).decode()})


def fields_of_line(line: str) -> dict[str, str | bytes | int]:
    """Return the fields of the message on one line.

    Raises:
        BadExport: it is none of an export, in a sentence.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadExport(f"it is no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("v") != VERSION or "body_base64" not in found:
        raise BadExport(f"it is no line of `poison export`, or of another version than {VERSION}")
    fields = {name: found[name] for name in _FIELDS if name in found}
    for name, value in fields.items():
        if not isinstance(value, str):
            raise BadExport(f"{name} is no text")
    _check(fields)
    try:
        body = base64.b64decode(found["body_base64"], validate=True)
        packed = {name: value.encode("utf-8", "surrogateescape") for name, value in fields.items()}
    except (TypeError, ValueError, binascii.Error):
        raise BadExport("its body is no base64, or a field no text") from None
    names = {name: fields.get(name, "") for name in (*_NAMES, "cause")}
    return {**packed, **names, "body": body, "payload_bytes": len(body)}


def _check(fields: Mapping[str, str]) -> None:
    for name in _NEEDED:
        if name not in fields:
            raise BadExport(f"{name} is missing")
    for name in (*_NAMES, "cause"):
        value = fields.get(name, "")
        if value != word(value) or not (value or name == "task"):
            raise BadExport(f"{name} is empty, longer than 255 characters, or not printable")
    for name in _COUNTS:
        if fields.get(name) and not fields[name].isdecimal():
            raise BadExport(f"{name} is no number")
    for name in _JSON:
        if fields.get(name):
            _check_json(name, fields[name])
    try:
        causes.Evidence.decode(fields.get("evidence", "")).sentence()
    except Exception:
        raise BadExport("evidence is none") from None


def _check_json(name: str, text: str) -> None:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise BadExport(f"{name} is no JSON") from None
    if not isinstance(value, dict):
        raise BadExport(f"{name} is no JSON object")
