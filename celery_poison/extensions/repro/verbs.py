"""``celery poison repro``: a failing test of a message in quarantine (NEW-21)."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from celery_poison.basics.text import argument, command, short
from celery_poison.cli.command import REFUSED, app_of, json_option, open_quarantine, verb
from celery_poison.cli.output import is_terminal, print_json, say, wants_json
from celery_poison.errors import IllegalTransition
from celery_poison.extensions.repro.shrinking import Spent, shrink
from celery_poison.extensions.repro.writing import Repro, TaskCall, call_of, repro_of
from celery_poison.keep.private_files import open_private
from celery_poison.plugin import plugin_of

#: Lines of a test that a terminal is not flooded with, and how many it then gets.
_SCREENFUL, _HEAD = 24, 12


@verb(
    click.argument("id"),
    click.option(
        *("-o", "--output"),
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="Directory for the file, made if missing.",
    ),
    click.option("--pickle", "pickled", is_flag=True, help="Also a pickled body, which the test opens."),
    click.option("--minimise", is_flag=True, help="Run the task here, to find smaller arguments it dies of."),
    click.option("--attempts", default=200, type=click.IntRange(1), help="Runs.", show_default=True),
    click.option("--seconds", default=300, type=click.IntRange(1), help="Time for them.", show_default=True),
    json_option,
)
def repro(ctx: click.Context, id: str, output: Path | None, pickled: bool, **options: Any) -> None:
    """Write a pytest file in which the task of a message in quarantine dies again.

    It runs the task in a process with limits of time and memory, and fails if that dies. Values that
    poison_redact hides are to be filled in. With --minimise, status 1 says that it did not die here.

    \b
    celery -A proj poison repro ID -o tests/ --minimise
    """
    app, quarantine = app_of(ctx), open_quarantine(ctx)
    record = quarantine.get(id)
    stored = quarantine.message(record.mid)
    call = call_of(app, plugin_of(app).settings.redact, record.task, stored, pickled=pickled)
    made = repro_of(app, record, stored, call)
    found: dict[str, Any] = {}
    if options["minimise"]:
        if made.hidden or call.pickled is not None:
            raise IllegalTransition("--minimise needs JSON arguments, and poison_redact may hide none")

        def written(smaller: TaskCall) -> Repro:
            return repro_of(app, record, stored, smaller)

        call, found = _minimise(call, written, options["attempts"], options["seconds"])
        made = written(call)
    path = _write(made, output)
    if wants_json():
        print_json({"file": str(path or ""), "hidden": made.hidden, **found, "text": made.text})
    elif path is None:
        _print(made.text, f"poison repro -o DIR {argument(short(record.id))}")
    if path is not None:
        say(f"written: {path}; run: pytest {path}", err=True)
    if made.hidden:
        say(f"poison_redact hides {made.hidden} values: write them in place of fill_in(...)", err=True)
    for line in [found.get("said")] if found else []:
        say(line, err=True)
    if found and not found["dies"]:
        ctx.exit(REFUSED)


def _print(text: str, whole: str) -> None:
    """Print a test; of a long one a terminal gets the head, and what to type for a file with all of it."""
    lines = text.splitlines()
    if len(lines) <= _SCREENFUL or not is_terminal():
        click.echo(text, nl=False)
        return
    click.echo("\n".join(lines[:_HEAD]))
    say(f"… {len(lines) - _HEAD:,} more lines; next: {command(whole)}", err=True)


def _write(made: Repro, output: Path | None) -> Path | None:
    if output is None:
        return None
    path = output / made.name
    try:
        output.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="ascii", opener=open_private) as file:
            file.write(made.text)
    except FileExistsError:
        raise IllegalTransition(f"{path} is there already: remove it, or choose another -o") from None
    return path


def _minimise(call: TaskCall, written: Any, attempts: int, seconds: int) -> tuple[TaskCall, dict[str, Any]]:
    """Return the smallest call that ends the task as the first one does, and a summary of the search."""
    until, runs = time.monotonic() + seconds, 0
    whole = [[*call.args], call.kwargs]

    def end_of(value: Any) -> str:
        nonlocal runs
        left = until - time.monotonic()
        if runs >= attempts or left <= 0:
            raise Spent
        runs += 1
        return _end_of(written(_with(call, value)), left)

    def dies(value: Any) -> bool:
        if not _is_call(value) or end_of(value) != first:
            return False
        say(f"run {runs}: it {first} of {_size(value)}, too", err=True)
        return True

    first = end_of(whole)
    if not first:
        return call, {"dies": False, "attempts": runs, "said": "it did not die here"}
    say(f"it {first} here, of {_size(whole)}; at most {attempts - runs} more runs, {seconds} s", err=True)
    shrunk = shrink(whole, dies)
    spent = f"{runs} runs are used up (--attempts)" if runs >= attempts else "--seconds are over"
    result = "nothing more can be left out" if shrunk.is_minimal else f"it may become smaller: {spent}"
    said = f"it {first} here; {runs} runs; {_size(whole)} -> {_size(shrunk.value)}; {result}"
    return _with(call, shrunk.value), {
        "dies": True,
        "attempts": runs,
        "minimal": shrunk.is_minimal,
        "bytes": [len(json.dumps(each)) for each in (whole, shrunk.value)],
        "said": said,
    }


def _size(call: Any) -> str:
    return f"{len(json.dumps(call)):,} bytes of arguments"


def _is_call(value: Any) -> bool:
    return len(value) == 2 and isinstance(value[0], list) and isinstance(value[1], dict)


def _with(call: TaskCall, value: Any) -> TaskCall:
    args, kwargs = value
    return call._replace(args=args, kwargs=kwargs, shown=(args, kwargs))


def _end_of(made: Repro, seconds: float) -> str:
    """Run a test's task in a process of its own; return how that died, empty if it did not."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, made.name)
        path.write_text(made.text, encoding="ascii")
        test: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
        exec(compile(made.text, path, "exec"), test)
        left = max(1.0, seconds)
        test["SECONDS"] = min(test["SECONDS"], left)
        test["STARTING"] = min(test["STARTING"], left - test["SECONDS"])
        end, said = test["end"]()
    if end == "could not begin":
        raise IllegalTransition(f"its task could not begin here: {said[-1000:].decode(errors='replace')}")
    return str(end)


AFTER, VERBS = "edit", (repro,)
