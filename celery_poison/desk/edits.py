"""Replacing a message by a changed copy: other arguments or another queue, all else as it was (NEW-6).

Bodies in JSON only, and nothing is evaluated. The copy keeps its task id, so that all that wait for the
original's result, its chord, its chain and its errbacks, hears of the copy; it is another message, with a mid
of its own.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from kombu.compression import compress
from kombu.utils import json as kombu_json

from celery_poison.desk.decisions import Decisions, Outcome, Outcomes, Request, Reserved
from celery_poison.desk.lookup import Lookup
from celery_poison.desk.owner import default_actor, refuse_to_run_again
from celery_poison.desk.store import Store
from celery_poison.errors import IllegalTransition
from celery_poison.headers import EDITED, MARK, MID, PARK, RELEASE, TRIAL, UNKNOWN_SINCE
from celery_poison.keep.arguments import arguments, fingerprint_of_copy, shown_of_copy
from celery_poison.keep.body import BodyRefused, json_of
from celery_poison.keep.stored_message import fields_of, sent_to, stored_message
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.policy import Policy
from celery_poison.states import State

#: What was true of the original's copies in queues, and is not of its changed copy.
_STALE = (RELEASE, MARK, PARK, TRIAL, UNKNOWN_SINCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited(Outcome):
    """The outcome of an edit; ``copy`` is the mid of the changed copy, empty where there is none.

    An edit whose copy could not be released is not ``done``, and has a copy: it waits in quarantine.
    """

    copy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The difference between a copy and its original.

    Attributes:
        args: all positional arguments; None: as they are.
        kwargs: all named arguments; None: as they are.
        values: name -> value of single arguments; a positional one goes by the name of its parameter.
        queue: that it is sent to; empty: as it is.
    """

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    queue: str = ""


class Call(NamedTuple):
    """A body of Celery's second message protocol; ``embed`` has its chord, chain, callbacks and errbacks."""

    args: list[Any]
    kwargs: dict[str, Any]
    embed: Any


class Draft(NamedTuple):
    """A changed copy that is not stored yet."""

    record: MessageRecord
    original: StoredMessage
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
        """Return the copy that :meth:`edit` would make of a message in quarantine; change nothing.

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
                f"no task {record.task!r} is registered in this app; whether a worker knows it cannot be seen"
                " from here: load the module that defines it, or use --force"
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
        return Draft(record, original, new, copy if queue == record.queue else sent_to(copy, queue), queue)


# --- the copy ------------------------------------------------------------------------------------


def call_of(stored: StoredMessage) -> Call:
    """Return the call that a message makes of its task.

    Raises:
        BodyRefused: it is not JSON, too large to be unpacked here, or of another protocol.
        BodyBroken: it says JSON and is none.
    """
    match json_of(stored):
        case [list(args), dict(kwargs), embed]:
            return Call(args, kwargs, embed)
    raise BodyRefused("its body is not one of Celery's second message protocol, so that it cannot be edited")


def typing_of(value: Any) -> str:
    """Return JSON for people to change, in which nothing turns or hides text: that is escaped, as JSON can.

    Raises:
        IllegalTransition: it is nested too deep.
    """
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        raise IllegalTransition(
            "its arguments are nested too deep: `celery poison edit` takes them"
        ) from None
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def typed_json(name: str, text: str, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    """Decode JSON that a person typed; ValueError: it is none, or not an object or array as ``kind`` says."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: this is no JSON: {error}") from None
    if not isinstance(value, kind):
        raise ValueError(f"{name}: write {'an array' if kind is list else 'an object'} in JSON")
    return value


def is_same(old: Call, new: Call) -> bool:
    """Whether nothing is changed; to a task ``1`` and ``true`` are not the same."""
    try:
        return repr(old) == repr(new)
    except RecursionError:  # nested as deep as reading allows: writing will refuse it
        return False


def changed_call(call: Call, change: Change, task: Any) -> Call:
    """Return the call with the change made.

    Args:
        task: knows the names of positional parameters; None where this app has no such task.

    Raises:
        IllegalTransition: the call has no argument of a name, and the task no parameter.
    """
    args = list(call.args if change.args is None else change.args)
    kwargs = dict(call.kwargs if change.kwargs is None else change.kwargs)
    positional, accepts, named = _parameters(task)
    for name, value in change.values.items():
        if name in kwargs:
            kwargs[name] = value
        elif name in positional[: len(args)]:
            args[positional.index(name)] = value
        elif accepts(name):
            kwargs[name] = value
        else:
            raise IllegalTransition(_unknown(task, name, named))
    return Call(args, kwargs, call.embed)


def value_of(call: Call, name: str, task: Any) -> Any:
    """Return the value of an argument of a call, by the name of its parameter; None where it has none.

    Args:
        task: as of :func:`changed_call`.
    """
    positional = _parameters(task)[0][: len(call.args)]
    return call.args[positional.index(name)] if name in positional else call.kwargs.get(name)


def _unknown(task: Any, name: str, named: list[str]) -> str:
    if task is None:
        return f"it is called without an argument {name!r}, and this app has no such task that could take it"
    return f"{task.name} has no argument {name!r}; it has: {', '.join(named) or 'none'}"


def names_of(task: Any) -> list[str]:
    """Return the names of the arguments that a task takes, in their order; [] where it is not known here."""
    return _parameters(task)[2]


def _parameters(task: Any) -> tuple[list[str], Callable[[str], bool], list[str]]:
    """Return the positional names, what tells whether a name may be given, and the names that may be."""
    try:
        parameters = inspect.signature(task.run).parameters.values() if task is not None else ()
    except (TypeError, ValueError):
        parameters = ()
    kinds = {each.name: each.kind for each in parameters}
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    any_name = inspect.Parameter.VAR_KEYWORD in kinds.values()
    positional = [name for name, kind in kinds.items() if kind in by_position]
    named = [name for name, kind in kinds.items() if kind in by_name]
    return positional, lambda name: any_name or name in named, named


def check_fits(task: Any, call: Call) -> None:
    """Refuse a call that the task does not take, as Celery's own ``apply_async`` does.

    Raises:
        IllegalTransition: see there.
    """
    header = getattr(task, "__header__", None)
    if header is None or not task.typing:
        return
    try:
        header(*call.args, **call.kwargs)
    except TypeError as error:
        raise IllegalTransition(f"its task does not take these arguments: {error}; or use --force") from None


def changed_copy(stored: StoredMessage, old: Call, new: Call, mid: str, copy_mid: str) -> StoredMessage:
    """Return the copy as its producer would have sent it: ``new`` instead of ``old``, the rest untouched.

    Raises:
        BodyRefused: a new argument is nothing that JSON knows, or too deeply nested.
    """
    headers = {name: value for name, value in stored.headers.items() if name not in _STALE}
    headers |= {MID: copy_mid, EDITED: mid}
    if is_same(old, new):
        return replace(stored, headers=headers)
    try:
        body = kombu_json.dumps([new.args, new.kwargs, new.embed]).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BodyRefused(f"the changed call cannot be written as JSON: {error}") from None
    shown = {
        "argsrepr": shown_of_copy(headers.get("argsrepr"), tuple(old.args), tuple(new.args)),
        "kwargsrepr": shown_of_copy(headers.get("kwargsrepr"), old.kwargs, new.kwargs),
    }
    headers |= {name: text for name, text in shown.items() if text is not None}
    if method := headers.get("compression"):
        body, _ = compress(body, method)
    return replace(stored, body=body, headers=headers)
