"""``celery poison outbox``: what waits to be sent, why, and what a person does about it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from itertools import islice

import click

from celery_poison.basics.text import command, count_of, duration, short, span, when
from celery_poison.cli.command import (
    REFUSED,
    app_of,
    json_option,
    limit_option,
    open_quarantine,
    verb,
    who_options,
)
from celery_poison.cli.output import answer, answer_table, print_json, say, wants_json
from celery_poison.desk.owner import default_actor
from celery_poison.errors import MessageNotFound
from celery_poison.extensions.outbox.database import waiting_rows
from celery_poison.extensions.outbox.desk import OutboxDesk, OutboxMessage
from celery_poison.extensions.outbox.lanes import LaneRecord
from celery_poison.extensions.outbox.relay import Relay
from celery_poison.extensions.outbox.send_failures import Cause
from celery_poison.extensions.outbox.settings import OutboxSettings
from celery_poison.plugin import plugin_of

_SELECT = (
    click.option("--queue", default="", help="Only of this queue."),
    click.option("--task", default="", help="Only of this task."),
    click.option("--failed", is_flag=True, help="Messages that were taken out: `outbox retry` sends them."),
)
_NUMBERS = click.argument("numbers", nargs=-1, type=click.IntRange(1), metavar="[NUMBER]...")


@click.group()
def outbox() -> None:
    """See and change the outbox: messages that are stored and not sent yet.

    A relay in every worker sends them, and tries again where that fails.

    \b
    celery -A proj poison outbox status
    """


def _desk(ctx: click.Context) -> OutboxDesk:
    open_quarantine(ctx)  # refuses the ledger of another app
    return OutboxDesk(plugin_of(app_of(ctx)))


@verb(json_option, name="status", group=outbox)
def status(ctx: click.Context) -> None:
    """Show for each destination how many messages wait, why, and when the next try is.

    \b
    celery -A proj poison outbox status
    """
    desk = _desk(ctx)
    lanes, failed = desk.lanes(), sum(1 for _ in desk.messages(failed=True))
    rows = waiting_rows(plugin_of(app_of(ctx)).settings.of(OutboxSettings).outbox_database)
    if wants_json():
        shown = {"destinations": [lane.as_dict() for lane in lanes], "failed": failed}
        print_json({**shown, "database": rows and rows._asdict()})
        return
    headings = ("QUEUE", "TASK", "WAITING", "TRIES", "WHY", "NEXT")
    waiting = count_of(sum(lane.waiting for lane in lanes), "message")
    title = f"{waiting} for {count_of(len(lanes), 'destination')}"
    hint = f"next: {command('poison outbox list')}"
    answer_table(lanes, headings, _lane_row, "nothing waits to be sent", title=title, hint=hint)
    if rows:
        say(str(rows), err=True)
    if failed:
        lost = f"{count_of(failed, 'message')} could not be sent and do not wait"
        say(f"{lost}: `outbox list --failed`", err=True)


def _lane_row(lane: LaneRecord) -> list[object]:
    task = lane.task or ("(tied)" if lane.tied else "any")
    if lane.blocked:
        by = lane.blocked.get("actor") or lane.blocked.get("cause")
        note = lane.blocked.get("note")
        since = when(lane.blocked.get("at_ms", 0) / 1000)
        why, soon = f"BLOCKED by {by} since {since}{note and f': {note}'}", "-"
    else:
        is_named = lane.cause in {each.value for each in Cause}
        why = f"{lane.cause}: {Cause(lane.cause).row.sentence}" if is_named else lane.cause or "-"
        soon = f"in {duration(lane.due_in)}" if lane.cause and lane.due_in else "now"
    return [lane.queue, task, lane.waiting, lane.tries, why, soon]


@verb(
    *_SELECT,
    limit_option(50),
    json_option,
    name="list",
    group=outbox,
)
def list_(ctx: click.Context, queue: str, task: str, failed: bool, limit: int) -> None:
    """List waiting messages in the order of sending.

    \b
    celery -A proj poison outbox list
    """
    messages = [*islice(_desk(ctx).messages(queue, task, failed=failed), limit)]
    headings = ["NUMBER", "ID", "TASK", "QUEUE", "AGE", "BYTES"]
    title = (
        f"{count_of(len(messages), 'message')} that {'could not be sent' if failed else 'wait to be sent'}"
    )
    hint = f"next: {command(f'poison outbox show {messages[0].seq}')}" if messages else ""
    answer_table(messages, headings, _row, "nothing", title=title, hint=hint)


def _row(row: OutboxMessage) -> list[object]:
    message = row.message
    if message is None:
        return [row.seq, "not to be read", "-", row.lane.queue if row.lane else "-", "-", "-"]
    age = span(max(0.0, time.time() - message.at))
    return [row.seq, short(message.id), message.task, message.queue, age, len(message.body)]


@verb(click.argument("number", type=click.IntRange(1)), json_option, name="show", group=outbox)
def show(ctx: click.Context, number: int) -> None:
    """Show one message: where it goes, its headers and properties. Its body is not decoded.

    \b
    celery -A proj poison outbox show 17
    """
    details = _desk(ctx).find(number).details()
    lines = (f"{name:<16}{when(value) if name == 'at' else value}" for name, value in details.items())
    answer(details, *lines)


@verb(_NUMBERS, *_SELECT[:2], *who_options, json_option, name="retry", group=outbox)
def retry(ctx: click.Context, numbers: tuple[int, ...], queue: str, task: str, note: str, actor: str) -> None:
    """Send at once: these NUMBERs, all that waits, or one queue or task.

    Blocked messages stay: unblock them. Name a failed message by its number.

    \b
    celery -A proj poison outbox retry
    celery -A proj poison outbox retry 17 18 --note "the queue is back"
    """
    desk, who = _desk(ctx), actor or default_actor()
    if numbers:
        _each(ctx, numbers, lambda seq: desk.retry(seq, actor=who, note=note), "retried")
        return
    due = desk.resend(queue, task)
    answer({"destinations": due}, f"{count_of(due, 'destination')} tried again now")


@verb(
    click.argument("numbers", nargs=-1, type=click.IntRange(1), required=True, metavar="NUMBER..."),
    *who_options,
    json_option,
    name="drop",
    group=outbox,
)
def drop(ctx: click.Context, numbers: tuple[int, ...], note: str, actor: str) -> None:
    """Delete unsent messages for good, without a report.

    \b
    celery -A proj poison outbox drop 17 --note "sent by hand"
    """
    desk, who = _desk(ctx), actor or default_actor()
    _each(ctx, numbers, lambda seq: desk.drop(seq, actor=who, note=note), "dropped")


def _each(ctx: click.Context, numbers: tuple[int, ...], act: Callable[[int], None], done: str) -> None:
    errors: dict[int, str] = {}
    numbers = tuple(dict.fromkeys(numbers))
    for seq in numbers:
        try:
            act(seq)
        except MessageNotFound as error:
            errors[seq] = str(error)
    outcomes = [{"seq": seq, "done": seq not in errors, "error": errors.get(seq, "")} for seq in numbers]
    answer(outcomes, *(f"{done}  {seq}" for seq in numbers if seq not in errors))
    if not wants_json():
        for refusal in errors.values():
            say(refusal, err=True)
    if errors:
        ctx.exit(REFUSED)


@verb(name="run", group=outbox)
def run(ctx: click.Context) -> None:
    """Send waiting messages from a process of its own, until SIGTERM or Ctrl-C.

    Every worker does so already: use this where no worker reaches the broker, or none runs all the time. Any
    number may run.

    \b
    celery -A proj poison outbox run
    """
    _desk(ctx)
    relay = Relay(plugin_of(app_of(ctx)), lambda error: say(f"celery poison: {error}", err=True))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: relay.stop())
    click.echo("celery poison: the relay sends what is in the outbox", err=True)
    relay.run()
    click.echo("celery poison: the relay has left", err=True)


# --- block and unblock: called by the verbs of these names ---------------------------------------------


def block_sending(
    ctx: click.Context, queue: str, task: str, note: str, actor: str, *, consuming: bool
) -> None:
    """``block --queue``: nothing is sent to a queue any more, or nothing of one task to it."""
    if consuming and task:
        raise click.UsageError("--consuming is about a whole queue; of one task: `pause --task`")
    is_new = _desk(ctx).block(queue, task, consuming=consuming, actor=actor or default_actor(), note=note)
    of = f" of task {task}" if task else ""
    was, too = "" if is_new else " (it was)", ", and consuming it" if consuming else ""
    line = f"blocked  sending{of} to queue {queue}{too}, until a person unblocks it{was}"
    answer({"kind": "queue", "queue": queue, "task": task, "new": is_new}, line)


def unblock_sending(ctx: click.Context, queue: str, task: str, note: str, actor: str) -> None:
    """``unblock --queue``: what waits is sent at once."""
    due = _desk(ctx).unblock(queue, task, actor=actor or default_actor(), note=note)
    blocked = {"kind": "queue", "queue": queue, "task": task, "destinations": due}
    line = f"unblocked  sending to queue {queue}; {count_of(due, 'destination')} tried now"
    answer(blocked, line)


AFTER, VERBS = "unblock", (outbox,)
