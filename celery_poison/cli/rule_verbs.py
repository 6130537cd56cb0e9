"""``celery poison block | unblock | policy | gate``: what is in force, while the workers run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from celery_poison.basics.rooms import rooms_with
from celery_poison.basics.text import command, count_of, when
from celery_poison.cli.command import REFUSED, app_of, force_option, json_option, seconds, verb, who_options
from celery_poison.cli.output import answer, answer_table, print_json, print_table, say, wants_json
from celery_poison.desk import Quarantine
from celery_poison.desk.rules import BlockList, PolicyChange, TaskPolicy, shown
from celery_poison.ledger.fleet_model import GateRecord
from celery_poison.policy import A_QUEUE, OVERRIDABLE
from celery_poison.rules.blocks import Rule, RuleKind

_SOON = "the workers act on it within a heartbeat"

_WHAT = (
    click.option("--task", default="", help="A task; with --fingerprint: the task it belongs to."),
    click.option("--fingerprint", default="", help="A fingerprint, as `list --json` and `show` print it."),
    click.option(
        "--like", "like", default="", metavar="ID", help="The fingerprint of this message in quarantine."
    ),
)
_QUEUE = click.option(
    "--queue", default="", help="Sending from the outbox to this queue; with --task only that task."
)
_IF_VERSION = click.option(
    "--if-version",
    type=click.IntRange(0),
    metavar="N",
    help="Only if this is still the version that `policy get` shows.",
)


# --- block list --------------------------------------------------------------------------------


@verb(
    *_WHAT,
    _QUEUE,
    click.option("--consuming", is_flag=True, help="With --queue: no worker consumes it either."),
    click.option(
        "--expires", callback=seconds, help="For how long: 90s, 15m, 12h, 7d. Default: until unblocked."
    ),
    click.option("--list", "as_list", is_flag=True, help="Only show what is blocked."),
    force_option,
    *who_options,
    json_option,
)
def block(ctx: click.Context, consuming: bool, expires: float | None, as_list: bool, **how: Any) -> None:
    """Send new messages of a task, or like a known poison, to quarantine without running them.

    Workers follow within a heartbeat. Running messages go on; a released message runs all the same.

    With --queue the outbox sends nothing to that queue. With --consuming the queue is paused, too; `unblock`
    ends both.

    \b
    celery -A proj poison block --like ID --note "crashes the converter"
    celery -A proj poison block --task shop.convert --expires 2h
    celery -A proj poison block --queue mail --note "the mail server is down"
    """
    if queue := how.pop("queue"):
        if how["fingerprint"] or how["like"] or expires:
            raise click.UsageError("--queue goes with --task only; it holds until a person unblocks it")
        sender = _verbs_of_the_sender()
        sender.block_sending(ctx, queue, how["task"], how["note"], how["actor"], consuming=consuming)
        return
    if consuming:
        raise click.UsageError("--consuming goes with --queue")
    quarantine = Quarantine(app_of(ctx))
    if as_list:
        _show_blocks(quarantine.blocks())
        return
    kind, name, task = _chosen(
        quarantine, **{each: how.pop(each) for each in ("task", "fingerprint", "like")}
    )
    force = how.pop("force")
    if kind is RuleKind.TASK:
        rule = quarantine.block_task(name, force=force, seconds=expires, **how)
    else:
        rule = quarantine.block_fingerprint(name, task=task, seconds=expires, **how)
    of = f" of {rule.task or 'any task'}" if rule.kind is RuleKind.FINGERPRINT else ""
    until = f"until {when(rule.until)}" if rule.until else "until a person unblocks it"
    answer(rule.as_dict(), f"blocked  {rule.kind} {rule.name}{of}, {until}", hint=_SOON)


@verb(*_WHAT, _QUEUE, *who_options, json_option)
def unblock(ctx: click.Context, queue: str, note: str, actor: str, **what: str) -> None:
    """Let new messages of a task, or like a known poison, run again; with --queue: send again.

    Messages in quarantine stay there. The convictions of the fingerprint are forgotten.

    \b
    celery -A proj poison unblock --like ID --note "fixed in 1.2.3"
    celery -A proj poison unblock --queue mail
    """
    if queue:
        _verbs_of_the_sender().unblock_sending(ctx, queue, what["task"], note, actor)
        return
    quarantine = Quarantine(app_of(ctx))
    kind, name, _ = _chosen(quarantine, **what)
    version = quarantine.unblock(kind, name, actor=actor, note=note)
    unblocked = {"kind": kind, "name": name, "version": version}
    answer(unblocked, f"unblocked  {kind} {name}", hint=_SOON)


def _verbs_of_the_sender() -> Any:
    """Return the module of the extension that sends from the ledger, and blocks that."""
    for room in rooms_with("verbs"):
        if hasattr(room, "block_sending"):
            return room
    raise click.UsageError("--queue needs an extension that sends from the ledger; it was left out here")


def _chosen(quarantine: Quarantine, task: str, fingerprint: str, like: str) -> tuple[RuleKind, str, str]:
    """Return kind, name, and whose messages can match."""
    if like and not (task or fingerprint):
        return RuleKind.FINGERPRINT, *quarantine.fingerprint_of(like)
    if fingerprint and not like:
        return RuleKind.FINGERPRINT, fingerprint, task
    if task and not like:
        return RuleKind.TASK, task, task
    raise click.UsageError(
        "say what: --queue NAME, --task NAME, --fingerprint HEX [--task NAME], or --like ID"
    )


def _show_blocks(blocks: BlockList) -> None:
    def row(rule: Rule) -> list[str]:
        until = when(rule.until) if rule.until else "until unblocked"
        why = f"{rule.actor}: {rule.note or '-'}" if rule.actor else f"{rule.convictions} convictions"
        return [rule.kind, rule.name, rule.task or "any", when(rule.since), until, why]

    if wants_json():
        print_json(blocks.as_dict())
        return
    headings = ("KIND", "NAME", "TASK", "SINCE", "UNTIL", "WHY")
    newest = blocks.rules[0] if blocks.rules else None
    undo = f"poison unblock --{newest.kind} {shlex.quote(newest.name)}" if newest else ""
    title = f"{count_of(len(blocks.rules), 'rule')} in force, the newest first"
    hint = f"next: {command(undo)}"
    answer_table(blocks.rules, headings, row, "nothing is blocked", title=title, hint=hint)
    for sentence in blocks.ignored:
        say(sentence, err=True)


# --- policy ------------------------------------------------------------------------------------


@click.group()
def policy() -> None:
    """See and change the limits of tasks, while the workers run.

    Every worker acts on a change within about a heartbeat, without a restart. An override of a task goes
    before one of every task ('*'), and both go before the code and the settings.

    \b
    celery -A proj poison policy get
    """


_OF_QUEUE = click.option("--queue", default="", help="Instead of TASK: all messages of this queue.")


@verb(click.argument("task", required=False), _OF_QUEUE, json_option, group=policy)
def get(ctx: click.Context, task: str | None, queue: str) -> None:
    """Show the limits of each task, or of one TASK, and their origin.

    Origins: override (at run time, for the task), override * (for every task), code (guarded(...) or an
    attribute of the task), setting (or its default). A queue with limits of its own is a line queue:NAME.

    \b
    celery -A proj poison policy get
    """
    task = A_QUEUE + queue if queue else task
    policies = Quarantine(app_of(ctx)).policies()
    tasks = [each for each in policies.tasks if task in (None, each.task)]
    if wants_json():
        print_json({**policies.as_dict(), "tasks": [each.as_dict() for each in tasks]})
    else:
        if tasks:
            say(_found(tasks), err=True)
            print_table(["TASK", *(name.upper() for name in OVERRIDABLE), ""], map(_policy_row, tasks))
        say(f"version {policies.version}" if policies.version else "nothing was ever overridden", err=True)
        for sentence in policies.ignored:
            say(sentence, err=True)
        if tasks:
            say(f"next: {command('poison policy set --help')}", err=True)
    if task is not None and not tasks:
        missing = "" if queue else f"this app guards no task {task!r}, and "
        say(f"{missing}nothing is overridden for it", err=True)
        ctx.exit(REFUSED)


@verb(
    click.argument("task"),
    click.argument("options", nargs=-1, metavar="OPTION=VALUE..."),
    _OF_QUEUE,
    *who_options,
    _IF_VERSION,
    json_option,
    force_option,
    name="set",
    group=policy,
)
def set_(ctx: click.Context, task: str, options: Sequence[str], queue: str, **how: Any) -> None:
    """Override limits of TASK, of every guarded task ('*', in quotes), or of a queue (without TASK).

    Options: max_crashes, max_failures, max_payload_bytes, block_fingerprint_after; a number, or none. Other
    overrides stay.

    \b
    celery -A proj poison policy set shop.convert max_crashes=3 max_failures=10 --note "slow supplier"
    celery -A proj poison policy set '*' max_payload_bytes=1048576
    celery -A proj poison policy set shop.convert max_payload_bytes=none --if-version 1767225600000
    """
    if queue:
        task, options = A_QUEUE + queue, [task, *options]
    if not options:
        raise click.UsageError("say what: OPTION=VALUE, for example max_crashes=3")
    wanted = dict(map(_option, options))
    _report(Quarantine(app_of(ctx)).set_policy(task, wanted, **how))


@verb(
    click.argument("task", required=False, default=""),
    click.argument("options", nargs=-1, metavar="[OPTION]..."),
    _OF_QUEUE,
    *who_options,
    _IF_VERSION,
    json_option,
    group=policy,
)
def unset(ctx: click.Context, task: str, options: Sequence[str], queue: str, **how: Any) -> None:
    """Remove overrides of TASK, of '*', or of a queue: the named options, else all.

    \b
    celery -A proj poison policy unset shop.convert max_crashes
    celery -A proj poison policy unset '*' --note "incident is over"
    """
    if queue:
        task, options = A_QUEUE + queue, [*filter(None, [task]), *options]
    if not task:
        raise click.UsageError("say whose: TASK, '*' or --queue NAME")
    _report(Quarantine(app_of(ctx)).unset_policy(task, options, **how))


def _option(typed: str) -> tuple[str, Any]:
    name, given, text = map(str.strip, typed.partition("="))
    if not given:
        raise click.UsageError(
            f"{typed!r} is not OPTION=VALUE: write for example max_crashes=3, and '*' in quotes"
        )
    if text.lower() == "none":
        return name, None
    with suppress(ValueError):
        return name, int(text)
    return name, text  # refused by the same check as a setting, which names the cure


def _found(policies: Sequence[TaskPolicy]) -> str:
    changed = sum(any(origin.startswith("override") for origin in each.origins.values()) for each in policies)
    return f"{len(policies)} {'policy' if len(policies) == 1 else 'policies'}, {changed} with an override"


def _policy_row(of: TaskPolicy) -> list[str]:
    cells = [
        f"{shown(of.values[name])} ({of.origins[name]})" if name in of.values else "-" for name in OVERRIDABLE
    ]
    is_known = of.guarded or of.task == "*" or of.task.startswith(A_QUEUE)
    return [of.task, *cells, "" if is_known else "not a guarded task of this app"]


def _report(change: PolicyChange) -> None:
    options = " ".join(f"{name}={shown(value)}" for name, value in change.options.items())
    line, hint = (
        f"{change.task}  {options or 'not overridden any more'}",
        f"version {change.version}; {_SOON}",
    )
    answer(change._asdict(), line, hint=hint)


# --- fleet gate --------------------------------------------------------------------------------


@click.group()
def gate() -> None:
    """See and lift the fleet gate, which closes when too many workers die at once.

    While it is closed, only a death on trial convicts. It opens by itself when no more workers die.

    \b
    celery -A proj poison gate show
    """


@verb(json_option, name="show", group=gate)
def show_gate(ctx: click.Context) -> None:
    """Say whether it is closed, since when, and why.

    \b
    celery -A proj poison gate show
    """
    seen = Quarantine(app_of(ctx)).gate()
    answer(seen.as_dict(), gate_line(seen))


@verb(*who_options, json_option, group=gate)
def lift(ctx: click.Context, note: str, actor: str) -> None:
    """Let deaths convict again at once, and forget those that closed the gate.

    \b
    celery -A proj poison gate lift --note "the node is back"
    """
    seen = Quarantine(app_of(ctx)).lift_gate(actor=actor, note=note)
    answer(seen.as_dict(), "lifted  the fleet gate: deaths convict again")


def gate_line(gate: GateRecord) -> str:
    """Return one sentence about how the gate stands."""
    if gate.closed:
        return f"CLOSED since {when(gate.closed_at)}, until {when(gate.until)} at the earliest: {gate.story}"
    if gate.lifted_at is None:
        return "open"
    return f"open; lifted {when(gate.lifted_at)} by {gate.lifted_by or 'itself'}"
