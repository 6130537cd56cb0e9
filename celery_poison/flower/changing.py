"""Editing one message, and blocking what is like it: what `celery poison edit`, `block` and `unblock` do.

An act takes the request that asks for it, as those of ``acts``, and raises what refuses it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from tornado.web import HTTPError

from celery_poison import causes
from celery_poison.desk import Quarantine
from celery_poison.desk.care import seconds_of
from celery_poison.desk.edits import Edited, call_of, typed_json, typing_of
from celery_poison.errors import IllegalTransition, PoisonError
from celery_poison.flower.access import Guarded
from celery_poison.flower.act_pages import do_known
from celery_poison.flower.async_ledger import PUBLISH_TIMEOUT
from celery_poison.flower.choosing import NothingChosen
from celery_poison.flower.extension_parts import union
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.rules.blocks import Rule, RuleKind
from celery_poison.states import State

# --- editing (NEW-6) ----------------------------------------------------------------------------------


class Editable(NamedTuple):
    """The editable parts of a message, as they are typed."""

    record: MessageRecord
    args: str
    kwargs: str
    queue: str


def can_edit(record: MessageRecord, stored: StoredMessage | None) -> bool:
    """Whether a changed copy can be made of a message: it is in quarantine, and its body is a task's JSON."""
    if stored is None or record.state != State.NDLV or record.cause in causes.UNPROCESSABLE:
        return False
    try:
        call_of(stored)
    except PoisonError:
        return False
    return True


async def editable(of: Guarded, id: str) -> Editable:
    """Return the editable parts of a message, for the fields of a form.

    Raises:
        MessageNotFound, IllegalTransition: it is not in quarantine.
        BodyRefused, BodyBroken: its body is no JSON of Celery's second message protocol.
    """
    return await of.ledger.ask(partial(_editable, of.ledger.quarantine, id), PUBLISH_TIMEOUT)


def _editable(quarantine: Quarantine, id: str) -> Editable:
    record = quarantine.get(id)
    if record.state != State.NDLV:
        raise IllegalTransition(f"the message is in state {record.state}, not in quarantine")
    call = call_of(quarantine.message(record.mid))
    return Editable(record, typing_of(call.args), typing_of(call.kwargs), record.queue)


async def edit(of: Guarded, mid: str) -> Edited:
    """Release a changed copy of a message, or keep it in quarantine (``hold``).

    Raises:
        NothingChosen: what was typed is no JSON, or not of the kind that Celery calls a task with.
        IllegalTransition: it was refused: nothing was changed, or the copy was made and not released.
    """
    args, kwargs = _typed(of, "args", list), _typed(of, "kwargs", dict)
    how = {name: of.said(name) == "1" for name in ("hold", "force", "yes_run_again")}
    act = partial(of.ledger.quarantine.edit, mid, args=args, kwargs=kwargs, queue=of.said("queue").strip())
    edited = await of.ledger.change(
        partial(act, actor=of.actor, note=of.said("note"), **how), PUBLISH_TIMEOUT
    )
    if not edited.done:
        raise IllegalTransition(edited.error)
    return edited


def _typed(of: Guarded, name: str, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    try:
        return typed_json(name, of.said(name), kind)
    except ValueError as wrong:
        raise NothingChosen(str(wrong)) from None


# --- blocking (NEW-3) ---------------------------------------------------------------------------------


def can_block(record: MessageRecord) -> bool:
    """Whether others like a message can be blocked: not where its fingerprint tells equal failures."""
    return bool(record.fingerprint) and record.cause not in (causes.FAILURE, *causes.UNPROCESSABLE)


async def block(of: Guarded) -> Any:
    """Block a task, a fingerprint, or what an extension blocks; see `celery poison block`.

    Raises:
        NothingChosen: it is not said what, or this app does not know it.
        BadCare: ``expires`` is no time.
        ConfigurationError: it is no fingerprint.
        HTTPError: 400: there is no such kind.
    """
    kind, name, task = (of.said(each).strip() for each in ("kind", "name", "task"))
    others = union(lambda part: part.blocks)
    if kind in others:
        return await others[kind][0](of)
    if kind not in [*RuleKind]:
        raise HTTPError(400, f"kind must be one of {', '.join([*RuleKind, *others])}")
    if not name:
        raise NothingChosen(f"Say which {kind}")
    typed = of.said("expires").strip()
    how: dict[str, Any] = {
        "seconds": seconds_of(typed) if typed else None,
        "actor": of.actor,
        "note": of.said("note"),
    }
    quarantine = of.ledger.quarantine
    if kind == RuleKind.TASK:
        act = partial(quarantine.block_task, name, force=of.said("force") == "1", **how)
    else:
        act = partial(quarantine.block_fingerprint, name, task=task, **how)
    return (await do_known(of, act)).as_dict()


async def unblock(of: Guarded) -> Any:
    """Let new messages of a task, or of a fingerprint, run again.

    Raises:
        MessageNotFound: it is not blocked.
        HTTPError: 400: there is no such kind.
    """
    kind, name = of.said("kind"), of.said("name")
    if kind not in [*RuleKind] or not name:
        raise HTTPError(400, f"kind must be one of {', '.join(RuleKind)}, and name must be given")
    end = partial(of.ledger.quarantine.unblock, RuleKind(kind), name, actor=of.actor, note=of.said("note"))
    return {"kind": kind, "name": name, "version": await of.ledger.change(end)}


async def blocked(of: Guarded) -> list[Rule]:
    """Return the block list, the newest rule first."""
    return list((await of.ledger.ask(of.ledger.quarantine.blocks)).rules)
