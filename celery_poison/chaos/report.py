"""What a run came to: for people, for programs, as a row of docs/chaos.md; and the story of one message."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from celery_poison.chaos.excuses import Case
from celery_poison.chaos.judge import HEALTHY, Outcome
from celery_poison.chaos.runs import Facts, Line
from celery_poison.chaos.stage import Options

#: Failures that are shown.
SHOWN = 30
HEAD = """\
| seed | fleet | minutes | faults | messages | poisons | excused | failed | commit | machine |
|---|---|---|---|---|---|---|---|---|---|
"""


def as_dict(outcome: Outcome, options: Options, seed: int, minutes: float) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    sent = outcome.facts.sent.values()
    return {
        "ok": not outcome.failures,
        "seed": seed,
        "pool": options.pool,
        "broker": options.broker,
        "trial": options.trial,
        "plain": options.plain,
        "minutes": minutes,
        "faults": dict(Counter(fault.name for fault in outcome.plan)),
        "messages": len(sent),
        "poisons": sum(one.kind != HEALTHY for one in sent),
        "quiet_after": round(outcome.quiet, 1),
        "failed": [told(finding.case) for finding in outcome.failures],
        "excused": dict(Counter(f"{f.case.wrong.value}: {f.excuse}" for f in outcome.findings if f.excuse)),
        "stories": outcome.stories,
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what somebody reads who looks at the end of a run, of what a program reads."""
    fleet = f"{found['pool']} on {found['broker']}{', plain' if found['plain'] else ''}"
    sent = f"{found['messages']} messages, {found['poisons']} of them poison"
    faults = sum(found["faults"].values())
    yield f"seed {found['seed']}, {fleet}: {sent}, {faults} faults; {'all held' if found['ok'] else 'FAILED'}"
    failed = found["failed"]
    yield from (f"FAILED  {text}" for text in failed[:SHOWN])
    if len(failed) > SHOWN:
        kinds = Counter(text.partition(":")[0] for text in failed)
        yield from (f"FAILED  {count} x {kind} altogether" for kind, count in kinds.items())
    yield from (f"excused {count} x {text}" for text, count in found["excused"].items())
    for id, told_of_it in list(found["stories"].items())[:1]:
        yield from ("", f"The story of {id}:", *told_of_it)
    if shortest := found.get("shortest"):
        yield from ("", "The shortest list of faults that was found to fail:", *shortest)


def told(case: Case) -> str:
    return " ".join(filter(None, (f"{case.wrong.value}:", case.id, case.text)))


def row(outcome: Outcome, options: Options, seed: int, minutes: float) -> str:
    """Return a row of the table in docs/chaos.md."""
    found = as_dict(outcome, options, seed, minutes)
    fleet = f"{'plain ' if options.plain else ''}{options.pool}, {options.broker}, {options.trial}"
    failed = Counter(finding.case.wrong.value for finding in outcome.failures)
    cells = [
        *(seed, fleet, f"{minutes:g}", len(outcome.plan), found["messages"], found["poisons"]),
        sum(found["excused"].values()),
        ", ".join(f"{count} {wrong}" for wrong, count in failed.items()) or "none",
        *(_commit(), f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"),
    ]
    return f"| {' | '.join(map(str, cells))} |\n"


def append(path: Path, line: str) -> None:
    """Append a row to a Markdown file; a new one gets the head of the table."""
    with path.open("a") as file:
        file.write(("" if file.tell() else HEAD) + line)


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # installed from a wheel
        return version("celery-poison")


_TOLD = ("event", "token", "worker", "state", "cause", "outcome", "deliveries", "strikes", "note")


def story(
    id: str, facts: Facts, lines: Iterable[Line], journal: Iterable[dict[str, str]], ahead: float
) -> list[str]:
    """Return one line for each thing that is known of a message, and for the faults around it.

    Args:
        ahead: seconds by which the wall clock, which the journal goes by, is ahead of the monotonic one.
    """
    told = [(sent.at, f"sent ({sent.kind})") for sent in filter(None, [facts.sent.get(id)])]
    for line in lines:
        if line.id == id and line.event != "step":
            trial = " on trial" if line.on_trial else ""
            told.append((line.at, f"{line.event} in {line.life}, process {line.pid}{trial}"))
    for entry in journal:
        if entry["id"] == id:
            words = " ".join(f"{name}={entry[name]}" for name in _TOLD if entry.get(name))
            told.append((recorded_at(entry) - ahead, f"journal: {words}"))
    begin, last = min(told, default=(0.0,))[0], max(told, default=(0.0,))[0]
    told += [
        (blow.began, f"FAULT {blow.name} {' '.join(blow.lives)} {blow.note} ({blow.seconds:.1f} s)")
        for blow in facts.blows
        if blow.began <= last + 20.0 and blow.ended >= begin - 5.0
    ]
    return [f"{at - begin:+8.2f} s  {text}" for at, text in sorted(told)]


def recorded_at(entry: dict[str, str]) -> float:
    """Return when a journal entry was made, in seconds since 1970."""
    return int(entry["at"].partition("-")[0]) / 1000
