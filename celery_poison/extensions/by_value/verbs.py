"""``celery poison hold add | list | lift``: nothing begins any more that is about one value."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from celery_poison.basics.text import command, count_of, first_of, when
from celery_poison.cli.command import (
    REFUSED,
    app_of,
    json_option,
    open_quarantine,
    seconds,
    verb,
    who_options,
)
from celery_poison.cli.decision_verbs import per_second, say_refusals, yes_run_again
from celery_poison.cli.output import answer, answer_table, print_json, say, wants_json
from celery_poison.desk.care import SOAK, Care
from celery_poison.desk.store import Store
from celery_poison.extensions.by_value.desk import HoldNow, ValueHoldDesk
from celery_poison.extensions.by_value.value_holds import EVERY_TASK


@click.group()
def hold() -> None:
    """Let no message begin that is about one value, whatever its task.

    \b
    celery -A proj poison hold add --where 'project_id=42' --note "its data is broken"
    celery -A proj poison hold list
    celery -A proj poison hold lift 1 --note "repaired"
    """


@verb(
    click.option(
        "--where",
        multiple=True,
        required=True,
        metavar="CONDITIONS",
        help="Conditions on arguments: 'project_id=42', 'size>1000 and region in eu,us'. All must hold.",
    ),
    click.option("--task", default=EVERY_TASK, metavar="PATTERN", help="Only of these tasks: 'shop.*'."),
    click.option("--wait", is_flag=True, help="They wait in the ledger instead."),
    click.option(
        "--for", "lasts", callback=seconds, metavar="TIME", help="90s, 15m, 2h. Default: until lifted."
    ),
    click.option("--force", is_flag=True, help="Even if no guarded task has such an argument."),
    *who_options,
    json_option,
    name="add",
    group=hold,
)
def add(ctx: click.Context, where: tuple[str, ...], lasts: float | None, **how: Any) -> None:
    """Send new messages with such arguments to quarantine, without running them.

    Workers follow within a heartbeat. Running messages go on; a released message runs all the same.

    \b
    celery -A proj poison hold add --where 'project_id=42' --note "its data is broken"
    celery -A proj poison hold add --where 'size>1000000' --task 'shop.*' --for 2h --wait
    """
    desk = ValueHoldDesk(Store(app_of(ctx)))
    made = desk.hold(where, seconds=lasts, **how)
    tasks = desk.tasks_of(made)
    until = f"until {when(made.until)}" if made.until else "until a person lifts it"
    what = "wait" if made.waits else "go to quarantine"
    of = f"{count_of(len(tasks), 'task')} ({first_of(tasks, 5)})" if tasks else "no task of this app"
    line = f"hold {made.number}  messages of {of} with {' and '.join(made.where)} {what}, {until}"
    hint = f"the workers act on it within a heartbeat; next: {command(f'poison hold lift {made.number}')}"
    answer({**made.as_dict(), "tasks": tasks}, line, hint=hint)


@verb(json_option, name="list", group=hold)
def list_(ctx: click.Context) -> None:
    """Show the holds by value, and how many messages each keeps.

    \b
    celery -A proj poison hold list
    """
    holds = ValueHoldDesk(Store(app_of(ctx))).value_holds()
    headings = ("HOLD", "WHERE", "TASK", "QUARANTINED", "WAITING", "SINCE", "UNTIL", "BY", "NOTE")
    hint = f"next: {command('poison hold lift HOLD')}"
    answer_table(holds, headings, _row, "nothing is held by value", hint=hint)


def _row(each: HoldNow) -> tuple[object, ...]:
    made = each.hold
    until = "over" if each.over else when(made.until) if made.until else "-"
    keeps = each.quarantined, each.waiting if made.waits else "-", when(made.since), until
    return made.number, " and ".join(made.where), made.task, *keeps, made.actor, made.note


@verb(
    click.argument("number", type=click.IntRange(1), metavar="HOLD"),
    click.option("--canary", is_flag=True, help="One first; the others only if it is well after --soak."),
    click.option("--soak", metavar="TIME", callback=seconds, help="With --canary: 90s, 15m. Default: 60s."),
    click.option("--rate", metavar="N/s|N/m", callback=per_second, help="So many per second, or minute."),
    yes_run_again,
    *who_options,
    json_option,
    name="lift",
    group=hold,
)
def lift(
    ctx: click.Context, number: int, canary: bool, soak: float | None, rate: float | None, **how: Any
) -> None:
    """Release what a hold brought to quarantine, and end it; what waits goes on.

    Where a message cannot be released, or (--canary, --rate) dies again, the hold stays in force. Typed
    again, the command goes on. What another hold catches, too, stays.

    \b
    celery -A proj poison hold lift 1 --note "repaired"
    celery -A proj poison hold lift 1 --canary --soak 5m --rate 10/s
    """
    if soak and not canary:
        raise click.UsageError("--soak says for how long a --canary is watched: add --canary")
    open_quarantine(ctx)
    care = Care(canary=canary, soak=soak or SOAK, rate=rate)
    on_progress = partial(say, err=True) if care.takes_time else None
    desk = ValueHoldDesk(Store(app_of(ctx)))
    waiting = sum(each.waiting for each in desk.value_holds() if each.hold.number == number)
    lifted = desk.lift(number, care=care, on_progress=on_progress, **how)
    refused = sum(not each.done for each in lifted.outcomes)
    if wants_json():
        print_json(lifted.as_dict())
    else:
        say_refusals(lifted.outcomes)
        goes_on = waiting if lifted.lifted else 0
        parts = [f"lifted  hold {number}" if lifted.lifted else f"hold {number} stays in force"]
        if lifted.outcomes or not goes_on:
            parts += [f"{count_of(len(lifted.outcomes) - refused, 'message')} released"]
            parts[-1] += f", {refused} refused" if refused else ""
        parts += [f"{count_of(goes_on, 'message')} that waited may go on"] if goes_on else []
        parts += [f"{lifted.kept} stay, since another hold catches them, or may"] if lifted.kept else []
        say("; ".join(parts))
    if refused or not lifted.lifted:
        ctx.exit(REFUSED)


AFTER, VERBS = "unblock", (hold,)
