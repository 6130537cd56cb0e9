"""What a run came to: for people, for programs, as a row of docs/chaos.md; and the story of one message."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.chaos.judge import HEALTHY, Outcome
from tests.chaos.runs import Facts
from tests.chaos.stage import Options

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
        "ledger": options.ledger,
        "trial": options.trial,
        "plain": options.plain,
        "minutes": minutes,
        "faults": dict(Counter(fault.name for fault in outcome.plan)),
        "messages": len(sent),
        "poisons": sum(one.kind != HEALTHY for one in sent),
        "quiet_after": round(outcome.quiet, 1),
        "failed": [case.told for case in outcome.failures],
        "excused": dict(Counter(f"{case.wrong}: {excuse}" for case, excuse in outcome.findings if excuse)),
        "stories": outcome.stories,
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what somebody reads who looks at the end of a run, of what a program reads."""
    apart = ", ledger on a cluster" if found["ledger"] == "cluster" else ""
    fleet = f"{found['pool']} on {found['broker']}{apart}{', plain' if found['plain'] else ''}"
    sent = f"{found['messages']} messages, {found['poisons']} of them poison"
    faults = sum(found["faults"].values())
    yield f"seed {found['seed']}, {fleet}: {sent}, {faults} faults; {'all held' if found['ok'] else 'FAILED'}"
    yield from (f"FAILED  {text}" for text in found["failed"][:SHOWN])
    if len(found["failed"]) > SHOWN:
        yield f"FAILED  {_kinds(found)} altogether"
    yield from (f"excused {count} x {text}" for text, count in found["excused"].items())
    for id, told_of_it in list(found["stories"].items())[:1]:
        yield from ("", f"The story of {id}:", *told_of_it)
    if shortest := found.get("shortest"):
        yield from ("", "The shortest list of faults that was found to fail:", *shortest)


def _kinds(found: Mapping[str, Any]) -> str:
    kinds = Counter(text.partition(":")[0] for text in found["failed"])
    return ", ".join(f"{count} {wrong}" for wrong, count in kinds.items())


def append_row(path: Path, found: Mapping[str, Any]) -> None:
    """Append a row to a table as in docs/chaos.md; a new file gets the head of it."""
    cells = [
        found["seed"],
        f"{'plain ' if found['plain'] else ''}{found['pool']}, {found['broker']}, {found['trial']}",
        *(f"{found['minutes']:g}", sum(found["faults"].values()), found["messages"], found["poisons"]),
        *(sum(found["excused"].values()), _kinds(found) or "none"),
        *(_commit(), f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"),
    ]
    with path.open("a") as file:
        file.write(("" if file.tell() else HEAD) + f"| {' | '.join(map(str, cells))} |\n")


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # installed from a wheel
        return version("celery-poison")


_TOLD = ("event", "token", "worker", "state", "cause", "outcome", "deliveries", "strikes", "note")


def story(id: str, facts: Facts) -> list[str]:
    """Return one line for each thing that is known of a message, and for the faults around it."""
    told = [(sent.at, f"sent ({sent.kind})") for sent in filter(None, [facts.sent.get(id)])]
    for run in facts.runs.get(id, ()):
        where = f"in {run.life}, process {run.pid}{' on trial' if run.on_trial else ''}"
        told.append((run.begin, f"begin {where}"))
        told.append((run.last, f"{'end' if run.end else 'kill' if run.kill else 'last seen'} {where}"))
    for at, entry in facts.journal:
        if entry["id"] == id:
            words = " ".join(f"{name}={entry[name]}" for name in _TOLD if entry.get(name))
            told.append((at, f"journal: {words}"))
    begin, last = min(told, default=(0.0,))[0], max(told, default=(0.0,))[0]
    told += [
        (
            blow.began,
            f"FAULT {blow.name} {' '.join(blow.lives)} {blow.note} until {blow.ended - begin:+.2f} s",
        )
        for blow in facts.blows
        if blow.began <= last + 20.0 and blow.ended >= begin - 5.0
    ]
    return [f"{at - begin:+8.2f} s  {text}" for at, text in sorted(told)]
