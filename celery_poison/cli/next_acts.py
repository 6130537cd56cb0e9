"""The commands that a person may type about one message, and the effect of each."""

from __future__ import annotations

import shlex

from celery_poison import causes
from celery_poison.basics.text import argument, command, short
from celery_poison.desk.sentences import is_parked
from celery_poison.model import MessageRecord
from celery_poison.states import State

_GIVE_UP = ("fail {id}", "give it up: its caller gets a failure")
_DISCARD = ("discard {id}", "give it up, and report nothing")
_LARGER = ("release --to QUEUE {id}", "to workers with more memory")
_CHANGE = ("edit --set NAME=VALUE {id}", "with other arguments")
_STOP = ("block --like {id}", "stop others with its arguments on arrival")
_READ = ("show --raw {id}", "its body, byte for byte")


def acts_on(
    record: MessageRecord, *, observe_only: bool = False, all_die: bool = False
) -> list[tuple[str, str]]:
    """Return the commands for a message, and the effect of each.

    Args:
        observe_only: nothing is diverted (``poison_observe_only``), so that nothing can be taken out either.
        all_die: whether all other messages of its task have died lately, and none ended well.
    """
    id = argument(short(record.id))
    if record.state == State.NDLV and record.sent_at:
        gone = (
            command(f"worker -Q {shlex.quote(record.destination)}"),
            "run what is in that queue, on probation",
        )
        return [gone, (command(f"poison discard {id}"), "give it up: a worker that gets it drops it")]
    if record.state == State.NDLV:
        return [(command(f"poison {act.format(id=id)}"), what) for act, what in _of_kept(record, all_die)]
    if record.edited_to:
        return [(command(f"poison show {argument(record.edited_to)}"), "its changed copy")]
    if record.state == State.FAIL and record.resolution == "discarded":
        return [(command(f"poison restore {id}"), "bring it back into quarantine")]
    if record.state == State.DLVD and record.cause:
        return [(command("poison journal tail --deaths"), "what else has died")]
    if record.state in (State.FAIL, State.DLVD):
        return []
    if observe_only:
        return [(command("poison journal tail"), "what has happened lately")]
    acts = [("fail", _GIVE_UP[1].replace("up:", "up now:")), ("discard", "give it up now")]
    if record.state == State.TBDL and not record.probation:
        acts.insert(0, ("release", "try it now, on probation"))
    if record.candidate:
        commands = [(command(f"poison {verb} {id}"), what) for verb, what in acts]
        return [*commands, (command("poison list --candidates"), "")]
    return _of_parked(record) if is_parked(record) else [(command("poison list --candidates"), "")]


def _of_parked(record: MessageRecord) -> list[tuple[str, str]]:
    holds = [(command("poison hold list"), "the holds by value; to lift the one that caught it lets it run")]
    others = (command("poison list --state TBDL"), "what else waits in the ledger")
    return [*(holds if "hold" in record.reason else ()), others]


def _of_kept(record: MessageRecord, all_die: bool) -> list[tuple[str, str]]:
    """Return the possible acts on a message in quarantine, and the effect of each."""
    cause = record.cause
    if cause in (causes.MALFORMED, causes.NOT_A_TASK):
        return [_READ, _DISCARD]
    if cause in causes.UNPROCESSABLE:
        return [("release {id}", "once a worker can read it: back to its queue"), _DISCARD]
    if cause == causes.BLOCKED:
        return [
            ("block --list", "the rules; one of them stopped it"),
            ("unblock --like {id}", "end a rule for messages like it; --task NAME ends one for a task"),
            ("release {id}", "run it all the same"),
            _GIVE_UP,
        ]
    if cause == causes.HELD:
        number = record.reason.removeprefix("hold ").partition(":")[0]
        lift = [(f"hold lift {number}", "end the hold, and release all that it stopped")]
        return [
            *(lift if number.isdecimal() else ()),
            ("hold list", "the holds by value, and what each keeps"),
            ("release {id}", "run this one all the same"),
            _GIVE_UP,
        ]
    if cause == causes.FAILURE:
        return [
            ("release {id}", "once repaired: back to its queue, and its result is overwritten"),
            _CHANGE,
            ("discard {id}", "give it up: its caller knows since it failed"),
        ]
    memory = [_LARGER] if cause in (causes.OOM, causes.MEMORY_ERROR) else []
    task = argument(record.task).replace("{", "{{").replace("}", "}}")
    stop = (f"pause --task {task}", "begin no other of its task: all die")
    return [
        *([stop] if all_die else []),
        ("release {id}", "once repaired; it runs alone"),
        *memory,
        ("repro -o DIR {id}", "write a failing test of it"),
        _CHANGE,
        _GIVE_UP,
        *([] if all_die else [_STOP]),
    ]
