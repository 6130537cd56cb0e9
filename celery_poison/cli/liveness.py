"""``celery poison alive``: the probe that may restart a worker."""

from __future__ import annotations

import click

from celery_poison.alive import answer, line, look
from celery_poison.basics.text import clean, command
from celery_poison.cli.command import json_option, verb
from celery_poison.cli.output import is_terminal, print_json, say, wants_json


@verb(
    click.argument("node", default=""),
    click.option("--strict", is_flag=True, help="Exit status 1, too, if there is no such worker."),
    json_option,
)
def alive(ctx: click.Context, node: str, strict: bool) -> None:
    """For a liveness probe: exit status 1 if a worker of this host is beyond help, else 0.

    NODE is a worker's name, such as worker1@host; without it all workers of this user count. It asks neither
    Redis nor the broker. `python -m celery_poison.alive` is the same without loading the app.

    \b
    celery -A proj poison alive
    celery -A proj poison alive worker1@example.com
    """
    status, answered = answer(*look(node), node, strict=strict)
    if wants_json():
        print_json(answered)
    else:
        is_well = answered["alive"] and answered["workers"]
        say(clean(line(answered)), err=not is_well)
        if not node and is_terminal():
            say(f"next: {command('poison workers')}, of this app; it names the dead, too", err=True)
    ctx.exit(status)
