"""``celery poison edit``: the same message with other arguments, or to another queue."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from celery_poison.basics.text import argument, command, count_of, short
from celery_poison.cli.command import REFUSED, app_of, json_option, open_quarantine, verb, who_options
from celery_poison.cli.decision_verbs import say_refusals, yes_run_again
from celery_poison.cli.output import answer, print_json, say, wants_json
from celery_poison.desk import Quarantine
from celery_poison.desk.edits import Call, Change, Draft, call_of, value_of
from celery_poison.errors import IllegalTransition
from celery_poison.keep.arguments import changes
from celery_poison.model import MessageRecord
from celery_poison.plugin import plugin_of


@verb(
    click.argument("id"),
    click.option("--args", "args", metavar="JSON", help="All positional arguments: '[42, \"a.png\"]'."),
    click.option("--kwargs", "kwargs", metavar="JSON", help="All named arguments: '{\"page\": 3}'."),
    click.option(
        "--set",
        "values",
        metavar="NAME=VALUE",
        multiple=True,
        help="One argument, in JSON or as text; a positional one by its parameter's name.",
    ),
    click.option("--queue", metavar="QUEUE", default="", help="Send the copy there."),
    click.option("--hold", is_flag=True, help="Keep the copy in quarantine, for release."),
    click.option("--dry-run", is_flag=True, help="Only show what the copy would be."),
    click.option(
        "--force",
        is_flag=True,
        help="Even if this app does not know the task, it takes no such arguments, a value is of another"
        " kind, or no worker consumes the queue.",
    ),
    yes_run_again,
    *who_options,
    json_option,
)
def edit(ctx: click.Context, **options: Any) -> None:
    """Release a changed copy of a message; the original is given up.

    The copy keeps the task id, so callers, chord, chain and errbacks get its result. It runs alone and on
    probation. Without --args, --kwargs, --set and --queue, $EDITOR opens the call. The body must be JSON.

    \b
    celery -A proj poison edit ID --set path=/srv/b.png --note "the file had moved"
    celery -A proj poison edit ID --args '[42]' --dry-run
    celery -A proj poison edit ID
    """
    change = Change(
        args=_typed("--args", options["args"], list),
        kwargs=_typed("--kwargs", options["kwargs"], dict),
        values=dict(map(_pair, options["values"])),
        queue=options["queue"],
    )
    quarantine = open_quarantine(ctx)
    record = quarantine.get(options["id"])
    mid, app = record.mid, app_of(ctx)
    if change.values and not options["force"]:
        if record.task not in app.tasks:  # its module may be one that only workers have needed so far
            app.loader.import_default_modules()
        _check_kinds(call_of(quarantine.message(mid)), change.values, app.tasks.get(record.task))
    if change == Change():
        change = _ask(quarantine, record)
    if options["dry_run"]:
        _show(ctx, quarantine.draft(mid, change, force=options["force"]))
        return
    how = {name: options[name] for name in ("hold", "actor", "note", "force", "yes_run_again")}
    outcome = quarantine.edit(
        mid, args=change.args, kwargs=change.kwargs, set=change.values, queue=change.queue, **how
    )
    where = "was released" if outcome.done and not options["hold"] else "waits in quarantine"
    line = f"edited  {short(outcome.id)}  {outcome.task}: its changed copy, of the same task id, {where}"
    line += "; the original counts as given up"
    hint = f"next: {command(f'poison show {argument(short(outcome.id))}')}"
    answer([outcome.as_dict()], *([line] if outcome.copy else ()), hint=hint if outcome.copy else "")
    if not outcome.done:
        if not wants_json():
            say_refusals([outcome])
        ctx.exit(REFUSED)


def _typed(option: str, text: str | None, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{option}: this is no JSON: {error}") from None
    if not isinstance(value, kind):
        wanted = "an array" if kind is list else "an object"
        raise click.UsageError(f"{option}: give {wanted} in JSON")
    return value


def _pair(text: str) -> tuple[str, Any]:
    name, is_pair, value = text.partition("=")
    if not is_pair or not name:
        raise click.UsageError(f"--set {text}: write NAME=VALUE; show ID names an argument of its task")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


#: Kinds of values that JSON tells apart, as people name them. A value may become null, and null any.
_KINDS = {list: "an array", dict: "an object", str: "text", bool: "a truth value", int: "a number"}
_KINDS |= {float: _KINDS[int], type(None): ""}


def _check_kinds(call: Call, values: Mapping[str, Any], task: Any) -> None:
    """Refuse a value of another kind than that which it replaces: what was typed as text looks like any.

    Raises:
        IllegalTransition: see there.
    """
    for name, new in values.items():
        old = value_of(call, name, task)
        before, after = _KINDS.get(type(old), ""), _KINDS.get(type(new), "")
        if before and after and before != after:
            length = f" of {count_of(len(old), 'item')}" if isinstance(old, list) else ""
            raise IllegalTransition(
                f"{name} is {before}{length}, and {_brief(new)} is {after}: write JSON that is"
                f" {before}, or --force"
            )


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 40 else f"{text[:36]} ..."


def _ask(quarantine: Quarantine, record: MessageRecord) -> Change:
    """Let a person change the call in an editor, as often as it takes until it can be read."""
    if wants_json() or not _has_terminal():
        raise click.UsageError("say what to change: --args, --kwargs, --set or --queue")
    call = call_of(quarantine.message(record.mid))
    shown = {"args": call.args, "kwargs": call.kwargs, "queue": record.queue}
    text: str | None = json.dumps(shown, indent=2, ensure_ascii=False) + "\n"
    while True:
        text = click.edit(text, extension=".json")
        if text is None:
            raise click.UsageError("nothing was changed")
        try:
            return _edited(text)
        except (ValueError, RecursionError) as error:
            say(f"this cannot be read: {error}", err=True)
            click.confirm("Edit it again?", default=True, abort=True, err=True)


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _edited(text: str) -> Change:
    match json.loads(text):
        case {"args": list(args), "kwargs": dict(kwargs), "queue": str(queue), **rest} if not rest:
            return Change(args=args, kwargs=kwargs, queue=queue)
    raise ValueError("give an object with args (an array), kwargs (an object) and queue (text)")


def _show(ctx: click.Context, draft: Draft) -> None:
    if wants_json():
        call = {"args": draft.new.args, "kwargs": draft.new.kwargs}
        print_json({"mid": draft.record.mid, "id": draft.record.id, **call, "queue": draft.queue})
        return
    app, record = app_of(ctx), draft.record
    redact, headers = plugin_of(app).settings.redact, draft.original.headers
    for name, before, after in changes(
        app, redact, record.task, headers, [*call_of(draft.original)], [*draft.new]
    ):
        say(f"{name}: {before} -> {after}")
    if draft.queue != record.queue:
        say(f"queue: {record.queue or '-'} -> {draft.queue}")
    click.echo("1 message would be edited; leave out --dry-run to do it", err=True)
