"""``celery poison journal``: what has happened."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import IO, NoReturn

import click
from kombu.utils.json import dumps

from celery_poison.basics.text import argument, clock, command, near_paths, short, utc
from celery_poison.cli.command import age, open_quarantine, utc_option, verb
from celery_poison.cli.output import print_wrapped, private_file, say, wants_json
from celery_poison.desk import Quarantine, sentences
from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger.journal_read import Extent, position


@click.group()
def journal() -> None:
    """Read the journal: one entry for each transition of a message, see docs/journal.md.

    \b
    celery -A proj poison journal tail --follow
    """


#: Events that are deaths.
DEATHS = ("crashed", "worker_lost")


def _events(ctx: click.Context, option: click.Parameter, typed: tuple[str, ...]) -> tuple[str, ...]:
    for word in typed:
        if word not in sentences.by_event():
            near = get_close_matches(word, sentences.by_event(), 1)
            meant = f"did you mean {near[0]}?" if near else "docs/journal.md lists them"
            raise click.BadParameter(f"there is no event {word!r}; {meant}")
    return typed


@verb(
    click.option(
        "-n", "--lines", type=click.IntRange(1), default=20, show_default=True, help="Number of entries."
    ),
    click.option("-f", "--follow", is_flag=True, help="Go on with new ones, until Ctrl-C."),
    click.option("--deaths", is_flag=True, help="Only deaths, of tasks and of workers."),
    click.option(
        "--event",
        "events",
        multiple=True,
        callback=_events,
        metavar="NAME",
        help="Only these events, see docs/journal.md; may be given again.",
    ),
    click.option("--task", default="*", metavar="PATTERN", help="Only of these tasks: 'shop.*'."),
    click.option(
        "--since", callback=age, metavar="TIME", help="Only since then: 2h (ago), 14:30, 2026-11-23T14:30."
    ),
    utc_option,
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line."),
    group=journal,
)
def tail(
    ctx: click.Context,
    lines: int,
    follow: bool,
    deaths: bool,
    events: tuple[str, ...],
    task: str,
    since: float | None,
) -> None:
    """Print the newest entries, the newest last: when, which task and message, and what happened.

    What is chosen is looked for among the newest 50,000 entries.

    \b
    celery -A proj poison journal tail -n 100
    celery -A proj poison journal tail --deaths --since 2h --task 'shop.*'
    """
    quarantine = open_quarantine(ctx)
    chosen = (*events, *(DEATHS if deaths else ()))

    def is_wanted(entry: Mapping[str, str]) -> bool:
        return (not chosen or entry["event"] in chosen) and fnmatchcase(entry["task"], task)

    is_narrow = bool(chosen or task != "*" or since is not None)
    last = (quarantine.journal()[0].last if follow else "") or "0-0"
    newest = quarantine.queries.journal(
        count=lines,
        wanted=is_wanted if is_narrow else None,
        since=None if since is None else quarantine.queries.now_ms() / 1000 - since,
    )
    if not wants_json():
        click.echo(_newest(newest, is_narrow=is_narrow), err=True)
    for entry in newest:
        _tell(entry)
    if follow:
        _follow(quarantine, max([last, *(entry["at"] for entry in newest)], key=position), is_wanted)
    named = [entry["id"] for entry in newest if entry["id"]]
    if named and not wants_json():
        click.echo(f"next: {command(f'poison show {argument(short(named[-1]))}')}", err=True)


#: Seconds between two looks for new entries.
_LOOK_EVERY = 0.5


def _follow(quarantine: Quarantine, last: str, is_wanted: Callable[[Mapping[str, str]], bool]) -> NoReturn:
    """Print what comes after an entry, until Ctrl-C; while Redis is away, say so once and ask again."""
    is_away = False
    while True:
        time.sleep(_LOOK_EVERY)
        try:
            reach, later = quarantine.journal(after=last)
            for entry in later:
                last = entry["at"]
                if is_wanted(entry):
                    _tell(entry)
        except LedgerUnavailable as error:
            if not is_away:
                say(f"celery poison: {error}; new entries follow when Redis answers again", err=True)
            is_away = True
        else:
            last, is_away = reach.last or last, False


def _newest(entries: Sequence[dict[str, str]], *, is_narrow: bool) -> str:
    if not entries and is_narrow:
        return "the journal has no such entry"
    if not entries:
        return "the journal is empty: nothing has happened so far"
    zone = "UTC" if utc.get() else time.strftime("%Z")
    entry = "entry" if len(entries) == 1 else "entries"
    return (
        f"the newest {len(entries)} {entry} of the journal, since {sentences.at(entries[0])}; times in {zone}"
    )


def _tell(entry: dict[str, str]) -> None:
    if wants_json():
        click.echo(dumps(entry))
    else:
        _print_entry(entry)


def _print_entry(entry: dict[str, str]) -> None:
    """Print one entry as a paragraph; the whole names of worker and message only with --utc."""
    at, id = clock(int(entry["at"].partition("-")[0]) / 1000), entry["id"]
    if not utc.get():
        entry = {**entry, "worker": entry["worker"].partition("/")[0]}
        id = short(id)
    whom = f"{entry['task']}[{id}] " if id else ""
    indent = max(_MOMENT, len(at) + 2)
    print_wrapped(near_paths(f"{whom}{sentences.sentence(entry)}"), f"{at:<{indent}}", indent)


#: Columns of the time of an entry.
_MOMENT = 14


def _entry_id(ctx: click.Context, option: click.Parameter, value: str) -> str:
    if value and not re.fullmatch(r"\d+-\d+", value):
        raise click.BadParameter("use the id of an entry, as 1700000000000-0")
    return value


@verb(
    click.option(
        "--after", callback=_entry_id, default="", metavar="ID", help="Only entries after this one."
    ),
    click.option(
        "--output", callback=private_file, metavar="FILE", default="-", help="A file instead of stdout."
    ),
    group=journal,
)
def export(ctx: click.Context, after: str, output: IO[str]) -> None:
    """Write all entries up to now, oldest first: one JSON object a line.

    On stderr: the number of entries, the --after for next time, and how many had been trimmed before.

    \b
    celery -A proj poison journal export --output journal.jsonl
    celery -A proj poison journal export --after 1700000000000-0 >> journal.jsonl
    """
    reach, entries = open_quarantine(ctx).journal(after=after)
    count, last = 0, after
    for entry in entries:
        output.write(json.dumps(entry) + "\n")
        count, last = count + 1, entry["at"]
    click.echo(f"{count} entries written" + (f"; go on with --after {last}" if last else ""), err=True)
    for gap in _gaps(reach, after, count):
        click.echo(f"warning: {gap}: export more often, or raise poison_journal_maxlen", err=True)


def _gaps(reach: Extent, after: str, count: int) -> list[str]:
    gaps = []
    if reach.may_lack(after):
        gaps.append(f"entries after {after} may have been trimmed already")
    elif not after and reach.trimmed:
        gaps.append(f"{reach.trimmed} older entries had been trimmed already")
    if not after and count < reach.length:
        gaps.append(f"{reach.length - count} entries were trimmed during the export")
    return gaps
