"""``celery poison pause | resume``: a queue or a task whose messages stay in place for a while."""

from __future__ import annotations

import click

from celery_poison.cli.output import print_json, say
from celery_poison.cli.session import app_of, json_option, verb, who_options
from celery_poison.ledger.pauses import Scope
from celery_poison.quarantine import Quarantine

_SOON = "the workers act on it within a heartbeat"

_WHAT = (
    click.option("--queue", default="", help="No worker consumes this queue."),
    click.option("--task", default="", help="No message of this task begins; they are parked."),
)


def _chosen(queue: str, task: str) -> tuple[Scope, str]:
    if bool(queue) == bool(task):
        raise click.UsageError("say what: --queue NAME or --task NAME")
    return (Scope.QUEUE, queue) if queue else (Scope.TASK, task)


@verb(
    *_WHAT,
    click.option("--force", is_flag=True, help="Even if nobody knows such a queue, or guards such a task."),
    *who_options,
    json_option,
)
def pause(
    ctx: click.Context, queue: str, task: str, force: bool, note: str, actor: str, as_json: bool
) -> None:
    """Keep the messages of a queue, or of a task, in place until somebody resumes it.

    Every worker acts on it within about a heartbeat, and so does one that starts later. What runs already
    goes on. `status` shows what is paused.

    \b
    celery -A proj poison pause --queue mails --note "relay is down"
    celery -A proj poison pause --task shop.convert
    """
    scope, name = _chosen(queue, task)
    quarantine = Quarantine(app_of(ctx))
    act = quarantine.pause_queue if scope is Scope.QUEUE else quarantine.pause_task
    paused = act(name, actor=actor, note=note, force=force)
    if as_json:
        print_json(paused.as_dict())
        return
    say(f"paused  {scope} {name}")
    say(_SOON, err=True)


@verb(
    *_WHAT,
    click.option("--worker", default="", metavar="NODE", help="Only what this worker suspended by itself."),
    *who_options,
    json_option,
)
def resume(
    ctx: click.Context, queue: str, task: str, worker: str, note: str, actor: str, as_json: bool
) -> None:
    """Let the messages of a paused queue, or of a paused task, go on.

    Workers that suspended themselves from the queue consume it again, too.

    \b
    celery -A proj poison resume --queue mails --note "relay is back"
    celery -A proj poison resume --queue mails --worker worker1@example.com
    celery -A proj poison resume --task shop.convert
    """
    scope, name = _chosen(queue, task)
    quarantine = Quarantine(app_of(ctx))
    if scope is Scope.QUEUE:
        over = quarantine.resume_queue(name, worker=worker, actor=actor, note=note)
    elif worker:
        raise click.UsageError("--worker goes with --queue")
    else:
        over = quarantine.resume_task(name, actor=actor, note=note)
    if as_json:
        print_json([pause.as_dict() for pause in over])
        return
    for pause in over:
        say(f"resumed  {pause.scope} {pause.name}" + (f" of {pause.worker}" if pause.worker else ""))
    say(_SOON, err=True)
