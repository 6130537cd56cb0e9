"""``celery poison incidents``: the deaths of workers and of task processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import click

from celery_poison import causes
from celery_poison.basics.numbers import milliseconds, whole
from celery_poison.basics.text import (
    argument,
    clean,
    clock,
    command,
    count_of,
    near_paths,
    short,
    span_in_two,
    utc,
)
from celery_poison.cli.command import (
    CommandRefused,
    app_of,
    json_option,
    limit_option,
    open_quarantine,
    utc_option,
    verb,
)
from celery_poison.cli.output import (
    answer_table,
    print_json,
    print_rows,
    print_table,
    print_wrapped,
    say,
    wants_json,
)
from celery_poison.desk import Quarantine, sentences, timeline
from celery_poison.desk.evidence import additions_of, died_when, sentence_of
from celery_poison.desk.survey import process_deaths
from celery_poison.ledger.fleet_model import Incident
from celery_poison.ledger.journal_read import ENTRIES_READ
from celery_poison.model import MessageRecord
from celery_poison.plugin import plugin_of
from celery_poison.states import Event

#: Deaths for which `incidents` says more: what they cost, and the task whose memory grew.
_ADDED = 5


@verb(click.argument("words", nargs=-1, metavar="[show ID]"), limit_option(20), utc_option, json_option)
def incidents(ctx: click.Context, words: tuple[str, ...], limit: int) -> None:
    """List the deaths of workers and of task processes, newest first; `show ID` tells of one worker's.

    GONE BY: the first sign of absence; with --utc the last sign of life, too. NOTICED: gone (connections
    broke), silent (no heartbeat) or frozen (only connected). TOOK: from the last sign of life to the
    end of the recovery. SUSPECTS: messages that were running. PUT BACK: messages by queue;
    RabbitMQ's own are not counted.

    \b
    celery -A proj poison incidents
    celery -A proj poison incidents show 3f2a9c0d11ee
    """
    quarantine = open_quarantine(ctx)
    queries = quarantine.queries
    if words:
        if len(words) != 2 or words[0] != "show":
            raise click.UsageError("write incidents, or incidents show ID")
        return _show_incident(quarantine, words[1])
    records = queries.incidents(limit)
    alone = queries.journal(count=limit, wanted=_is_alone)[::-1]
    notes = quarantine.incident_notes([incident.incident for incident in records])
    if wants_json():
        return print_json(_as_json(records, notes, alone))
    headings = ("INCIDENT", "GONE BY", "NOTICED", "TOOK", "CAUSE", "SUSPECTS", "PUT BACK", "WORKER")
    died = process_deaths(queries.counts())
    lines = [_alone_line(died), _unread_line(sum(died.values()), len(alone), limit)]
    if plugin_of(app_of(ctx)).settings.observe_only:
        lines.append(_observed_line(queries.observed()))
    open_ones = sum(incident.took is None for incident in records)
    title = count_of(len(records), "worker death") + (" shown" if len(records) == limit else "")
    title += f", recovery goes on after {open_ones} of them" if open_ones else ""
    hint = f"next: {command(f'poison incidents show {records[0].incident}')}" if records else ""
    answer_table(records, headings, _incident_row, "no worker has died", fit=True, title=title)
    added = ((each.incident, additions_of(each.evidence), notes.get(each.incident)) for each in records)
    told = [(name, " ".join(filter(None, words))) for name, *words in added if any(words)]
    lines += [clean(f"{name}: {sentence}") for name, sentence in told[:_ADDED]]
    for line in filter(None, lines):
        print_wrapped(line, "", 0)
    _print_alone(alone, any_ever=bool(died))
    if not records and alone:
        newest = argument(short(alone[0]["id"]))
        hint = f"next: {command(f'poison show {newest}')}"
    if hint:
        say(hint, err=True)


def _as_json(
    records: Sequence[Incident], notes: Mapping[str, str], alone: Sequence[Mapping[str, str]]
) -> list[dict[str, object]]:
    """Return the deaths of workers, then those of task processes: the same fields, and those of a task."""
    of_workers = [
        {"kind": "worker", **each.as_dict(), "notes": notes.get(each.incident, "")} for each in records
    ]
    return [*of_workers, *map(_alone_as_json, alone)]


def _alone_as_json(entry: Mapping[str, str]) -> dict[str, object]:
    noticed_at = int(entry["at"].partition("-")[0]) / 1000
    death = Incident(
        incident="",
        worker=entry["worker"],
        cause=entry["cause"],
        noticed_at=noticed_at,
        release=entry["release"],
        pid=whole(entry["pid"]),
        evidence=causes.Evidence.decode(entry["evidence"]),
    )
    of_task: dict[str, object] = {name: entry[name] for name in ("task", "id", "mid")}
    ran = milliseconds(entry["runtime_ms"])
    return {"kind": "process", **death.as_dict(), **of_task, "ran": ran, "notes": ""}


def _is_alone(entry: Mapping[str, str]) -> bool:
    """Whether a task process died whose worker lives on."""
    return entry["event"] == Event.CRASHED and entry["cause"] not in causes.OF_WORKERS


def _print_alone(alone: Sequence[Mapping[str, str]], *, any_ever: bool) -> None:
    """Print the deaths of task processes, and before them what to type for more: a line of its own."""
    if any_ever:
        click.echo(f"  {command('poison journal tail --deaths')}")
    if alone:
        click.echo("")
        print_table(("GONE BY", "CAUSE", "TASK", "RAN", "WHERE", "ID"), map(_alone_row, alone), fit=True)


def _alone_row(entry: Mapping[str, str]) -> tuple[object, ...]:
    place = causes.place_in(causes.Evidence.decode(entry["evidence"]).source)
    ran = milliseconds(entry["runtime_ms"])
    words = (_clock_of(entry), causes.short(entry["cause"]), entry["task"])
    return (*words, "-" if ran is None else span_in_two(ran), place or "-", short(entry["id"]))


def _clock_of(entry: Mapping[str, str]) -> str:
    return clock(int(entry["at"].partition("-")[0]) / 1000)


def _show_incident(quarantine: Quarantine, id: str) -> None:
    """Print what is known of one death of a worker, and what the journal has of it, in its order."""
    queries = quarantine.queries
    newest = queries.incidents(_SEARCHED)
    found = [each for each in newest if each.incident.startswith(id)]
    # The name of a worker stands for its last death.
    found = found or [each for each in newest if id in (each.worker, each.worker.partition("/")[0])][:1]
    if len(found) != 1:
        which = "no incident has that id" if not found else f"{len(found)} incidents begin with that id"
        raise CommandRefused(
            f"{id}: {which}, of the newest {_SEARCHED:,}; {command('poison incidents')} lists them"
        )
    (incident,) = found
    entries, lanes = timeline.read(queries, incident)
    if wants_json():
        notes = quarantine.incident_notes([incident.incident]).get(incident.incident, "")
        print_json({**incident.as_dict(), "history": entries, "notes": notes})
        return
    click.echo(clean(f"{incident.incident}  {causes.short(incident.cause)}: worker {incident.worker}"))
    if sentence := sentence_of(incident.evidence):
        print_wrapped(near_paths(sentence), "", 0)
    took = f"{incident.took:.1f} s" if incident.took is not None else "it goes on"
    put_back = ", ".join(f"{queue}: {n}" for queue, n in incident.returned.items()) or incident.put_back
    died = died_when(incident.evidence)
    rows = (
        ("died", died.removeprefix("at ")) if died else ("last heard", clock(incident.died_at)),
        ("noticed", f"{clock(incident.noticed_at)}, {incident.how or 'unknown how'}"),
        ("recovery", took),
        ("put back", put_back or "nothing that is counted"),
        ("suspects", incident.flagged or _no_suspects(incident)),
        *(("cost", clean(note)) for note in quarantine.incident_notes([incident.incident]).values()),
    )
    print_rows(rows, "  ")
    if not timeline.is_whole(entries):
        print_wrapped(f"what followed is not known: its death is not {_AMONG}", "  ", 2)
    for entry in entries:
        if not entry["mid"]:
            # Its evidence is the paragraph above.
            told = sentences.sentence({**entry, "evidence": ""})
            print_wrapped(near_paths(told), f"  {_clock_of(entry)}  ", 12)
    for lane in lanes[:_LANES]:
        print_wrapped(lane.sentence, f"  {lane.name}  ", 4)
    if len(lanes) > _LANES:
        click.echo(f"  … and {len(lanes) - _LANES:,} more")
    typed = f"poison show {argument(short(lanes[-1].id))}" if lanes else "poison workers"
    say(f"next: {command(typed)}", err=True)


#: Incidents among which one is looked for, and messages that are printed of it.
_SEARCHED, _LANES = 1000, 100


def _no_suspects(incident: Incident) -> str:
    asked = incident.cause == causes.EVICTION
    return "none: it had been asked to leave" if asked else "none: no message was running"


def _alone_line(alone: Mapping[str, int]) -> str:
    """Return how many task processes have died whose workers live on; empty for none."""
    if not alone:
        return ""
    of = ", ".join(f"{number} {causes.short(cause)}" for cause, number in alone.items())
    died = count_of(sum(alone.values()), "task process")
    return f"{died} died alone, since the ledger began: {of}"


#: Where the journal's entries are looked for; older ones may be gone, too.
_AMONG = f"among the journal's newest {ENTRIES_READ:,} entries"


def _unread_line(died: int, named: int, limit: int) -> str:
    """Return how many task processes that died alone the journal names no more; empty where that is none.

    Args:
        died: task processes, ever.
        named: of them, in the table, which has ``limit`` rows at most.
    """
    missing = died - named
    if named >= limit or missing <= 0:
        return ""
    return f"{missing} of these deaths {'is' if missing == 1 else 'are'} not {_AMONG}"


def _observed_line(observed: Sequence[MessageRecord]) -> str:
    """Return the tasks whose messages would be in quarantine but for ``poison_observe_only``."""
    if not observed:
        return ""
    tasks = ", ".join(f"{number} {clean(task)}" for task, number in Counter(r.task for r in observed).items())
    would = f"observing: {count_of(len(observed), 'message')} would be in quarantine"
    return f"{would}: {tasks}; {command(f'poison show {argument(short(observed[0].id))}')}"


def _incident_row(incident: Incident) -> tuple[object, ...]:
    by = incident.evidence.by_ms
    died = died_when(incident.evidence).removeprefix("at ") if utc.get() else ""
    return (
        incident.incident,
        died or clock(by / 1000 if by else incident.noticed_at or incident.died_at),
        incident.how or "-",
        f"{incident.took:.1f} s" if incident.took is not None else "open",
        incident.cause,
        incident.flagged,
        ", ".join(f"{queue}: {count}" for queue, count in incident.returned.items()) or incident.put_back,
        incident.worker if utc.get() else incident.worker.partition("/")[0],
    )
