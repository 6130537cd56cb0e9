"""Panels of ``status`` and Flower about holds by value, and the hold that is proposed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from celery import Celery

from celery_poison import causes
from celery_poison.basics.parts import Panel
from celery_poison.basics.text import count_of
from celery_poison.desk.finder import Finder
from celery_poison.desk.search import Condition as Field
from celery_poison.desk.search import Filter
from celery_poison.extensions.by_value.desk import HoldNow, holds_now
from celery_poison.extensions.by_value.proposing import ENOUGH, Kept, Proposed, propose
from celery_poison.extensions.by_value.signatures import parameters_of
from celery_poison.extensions.by_value.value_holds import ValueHolds
from celery_poison.keep.arguments import shown_by_name
from celery_poison.keep.stored_message import stored_message
from celery_poison.ledger import Ledger
from celery_poison.model import MessageRecord
from celery_poison.plugin import plugin_of

#: Messages in quarantine, the newest, and bytes of each, that are looked at for a proposal.
_LOOKED_AT, _BYTES = 50, 16_384
#: What was looked at last, and what was proposed.
_LAST: dict[tuple[Any, ...], Proposed | None] = {}
_NOT_HELD = Filter((Field("cause", "!=", causes.HELD),))


def panels(app: Celery, ledger: Ledger) -> Iterator[Panel]:
    """Yield the panel of the holds, and of a hold that is proposed."""
    holds, left = holds_now(ledger)
    # What waited for one that is over goes on by itself; where it keeps nothing else, nobody asks for it.
    over = [each for each in holds if each.over and each.quarantined]
    there = [each for each in holds if not each.is_spent]
    yield Panel(
        "value_holds",
        {"holds": holds, "work": ValueHolds(ledger).work()},
        as_json=[each.as_dict() for each in holds],
        line="; ".join(_line(each) for each in there),
        decisions=[*map(_over, over), *(_leftover(*each, bool(holds)) for each in left.items())],
        typed=[f"poison hold lift {number}" for number in (*(each.hold.number for each in over), *left)],
    )
    proposed = proposal(app, ledger)
    if proposed is not None and not any({*proposed.where} <= {*each.hold.where} for each in holds):
        words = " ".join(f"--where {shlex.quote(each)}" for each in proposed.where)
        yield Panel(
            "hold_proposed",
            proposed,
            as_json={"where": [*proposed.where], "messages": proposed.messages},
            decisions=[
                f"{count_of(proposed.messages, 'convicted message')} share {' and '.join(proposed.where)},"
                " and no other in quarantine does"
            ],
            typed=[f"poison hold add {words} --note '...'"],
        )


def _line(each: HoldNow) -> str:
    most = f"over {each.quarantined}" if each.is_more else str(each.quarantined)
    keeps = [f"{most} in quarantine"] if each.quarantined or not each.waiting else []
    keeps += [f"{each.waiting} waiting"] if each.waiting else []
    return f"{each.hold.story} ({', '.join(keeps)}{', over' if each.over else ''})"


def _over(each: HoldNow) -> str:
    hold = each.hold
    return f"hold {hold.number} ({hold.words}) is over: lift it to release {each.in_quarantine} of it"


def _leftover(number: int, messages: int, are_others: bool) -> str:
    stays = "; what another hold catches, too, stays" if are_others else ""
    what = f"{count_of(messages, 'message')} of it in quarantine"
    return f"hold {number} has ended, but {what}: lift it to release what is left{stays}"


def proposal(app: Celery, ledger: Ledger) -> Proposed | None:
    """Return the hold that the newest convicted messages call for; None: none."""
    newest = islice(Finder(ledger).records(_NOT_HELD), _LOOKED_AT)
    records = [record for record in newest if record.payload_bytes <= _BYTES]
    if sum(record.cause not in causes.NO_CONVICTIONS for record in records) < ENOUGH:
        return None
    redact = plugin_of(app).settings.redact
    looked_at = (*((record.mid, record.cause, record.fingerprint) for record in records), repr(redact))
    if looked_at not in _LAST:  # the bodies are read again where something came or went
        raws = ledger.read.originals(record.mid for record in records)
        proposed = propose([_kept(app, record, raw) for record, raw in zip(records, raws, strict=True)])
        _LAST.clear()
        _LAST[looked_at] = proposed
        return proposed
    return _LAST.get(looked_at)


def _kept(app: Celery, record: MessageRecord, raw: Mapping[str, bytes]) -> Kept:
    given: dict[str, Any] = {}
    with suppress(Exception):  # whatever a publisher has sent
        stored = stored_message(raw)
        given = shown_by_name(app, plugin_of(app).settings.redact, record.task, stored)
    usual = parameters_of(app, record.task).defaults
    own = {name: value for name, value in given.items() if name not in usual or usual[name] != value}
    return Kept(record.cause not in causes.NO_CONVICTIONS, record.fingerprint, own)
