"""``celery poison pause | resume``: what stays in place, while the workers run."""

from __future__ import annotations

from typing import Any

import click

from celery_poison.cli.command import app_of, json_option, verb, who_options
from celery_poison.cli.output import answer
from celery_poison.desk.store import Store
from celery_poison.extensions.holds.desk import HoldDesk
from celery_poison.extensions.holds.pauses import Scope

_SOON = "the workers act on it within a heartbeat"

_PAUSED = (
    click.option("--queue", default="", help="The whole queue: no worker consumes it."),
    click.option("--task", default="", help="One task: its messages are parked."),
)


def _scope(queue: str, task: str) -> tuple[Scope, str]:
    if bool(queue) == bool(task):
        raise click.UsageError("say what: --queue NAME or --task NAME")
    return (Scope.QUEUE, queue) if queue else (Scope.TASK, task)


@verb(
    *_PAUSED,
    click.option("--force", is_flag=True, help="Even if no such queue or guarded task is known."),
    *who_options,
    json_option,
)
def pause(ctx: click.Context, queue: str, task: str, **how: Any) -> None:
    """Keep the messages of a queue, or of a task, in place until `resume`.

    Workers follow within a heartbeat, later ones too. Running messages go on. `status` shows pauses.

    \b
    celery -A proj poison pause --queue mails --note "relay is down"
    """
    scope, name = _scope(queue, task)
    desk = HoldDesk(Store(app_of(ctx)))
    paused = (desk.pause_queue if queue else desk.pause_task)(name, **how)
    answer(paused.as_dict(), f"paused  {scope} {name}", hint=_SOON)


@verb(
    *_PAUSED,
    click.option("--worker", default="", metavar="NODE", help="Only of this worker, which suspended itself."),
    *who_options,
    json_option,
)
def resume(ctx: click.Context, queue: str, task: str, worker: str, **who: str) -> None:
    """End the pause of a queue or task.

    Workers that suspended themselves from the queue consume it again.

    \b
    celery -A proj poison resume --queue mails --note "relay is back"
    """
    _, name = _scope(queue, task)
    if worker and task:
        raise click.UsageError("--worker goes with --queue")
    desk = HoldDesk(Store(app_of(ctx)))
    over = desk.resume_queue(name, worker=worker, **who) if queue else desk.resume_task(name, **who)
    lines = [
        f"resumed  {each.scope} {each.name}{each.worker and f' of {each.worker}'}"
        if not each.version
        else f"resumed  task {each.name} for {each.version}"
        for each in over
    ]
    answer([each.as_dict() for each in over], *lines, hint=_SOON)


AFTER, VERBS = "unblock", (pause, resume)
