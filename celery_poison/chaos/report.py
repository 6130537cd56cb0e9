"""What a run came to: for people, for programs, as a row of docs/chaos.md; and the story of one message."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from celery_poison.chaos.excuses import Wrong
from celery_poison.chaos.judge import HEALTHY, Outcome
from celery_poison.chaos.runs import Facts, Line
from celery_poison.chaos.stage import Options

#: Findings of one kind that are shown.
SHOWN = dict.fromkeys(Wrong, 5) | {Wrong.LEFT: 30}
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


def lines(outcome: Outcome) -> Iterator[str]:
    """Yield what somebody reads who looks at the end of a run."""
    shown: Counter[tuple[Wrong, str]] = Counter()
    for finding in outcome.findings:
        kind = finding.case.wrong, finding.excuse
        shown[kind] += 1
        if not finding.excuse and shown[kind] <= SHOWN[finding.case.wrong]:
            yield f"FAILED  {told(finding.case)}"
    for (wrong, excuse), count in shown.items():
        if excuse:
            yield f"excused {count} x {wrong.value}: {excuse}"
        elif count > SHOWN[wrong]:
            yield f"FAILED  {count} x {wrong.value} altogether"
    for id, told_of_it in list(outcome.stories.items())[:1]:
        yield from ("", f"The story of {id}:", *told_of_it)


def told(case: Any) -> str:
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
        *(_commit(), _machine()),
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


def _machine() -> str:
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}"


#: Seconds of faults that are told before and after what happened to the message.
BEFORE, AFTER = 5.0, 20.0
#: Characters that are told of a record that mentions it.
_LONG = 200
_LOGGED = re.compile(r"^\[([\d:, -]+): \w+/\w[\w-]*\] (.*)$", re.MULTILINE)
_TOLD = ("event", "token", "worker", "state", "cause", "outcome", "deliveries", "strikes", "note")


def story(
    id: str,
    facts: Facts,
    lines: Iterable[Line],
    journal: Iterable[dict[str, str]],
    ahead: float,
    logs: Mapping[str, str],
) -> list[str]:
    """Return one line for each thing that is known of a message.

    Args:
        ahead: seconds by which the wall clock, which the journal goes by, is ahead of the monotonic one.
        logs: by the lives of the workers.
    """
    told = [*_own(id, facts, lines), *_recorded(id, journal, ahead)]
    if not told:
        return [f"nobody has ever heard of {id}"]
    first, last = min(told)[0] - BEFORE, max(told)[0] + AFTER
    told += [
        (blow.began, f"FAULT {blow.name} {' '.join(blow.lives)} {blow.note} ({blow.seconds:.1f} s)")
        for blow in facts.blows
        if blow.began <= last and blow.ended >= first
    ]
    told += _logged(id, logs, ahead)
    begin = facts.sent[id].at if id in facts.sent else first
    found = [f"{at - begin:+8.2f} s  {text}" for at, text in sorted(told)]
    mentions = re.compile(rf"(?<![\w.]){re.escape(id)}(?![\w.])").search
    return [*found, *(f"left in {line[:_LONG]}" for line in facts.on_record if mentions(line))]


def _logged(id: str, logs: Mapping[str, str], ahead: float) -> Iterator[tuple[float, str]]:
    for life, text in logs.items():
        for at, said in _LOGGED.findall(text):
            if f"[{id}]" in said:
                yield datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").timestamp() - ahead, f"{life}: {said}"


def _own(id: str, facts: Facts, lines: Iterable[Line]) -> Iterator[tuple[float, str]]:
    if sent := facts.sent.get(id):
        yield sent.at, f"sent ({sent.kind})"
    for line in lines:
        if line.id == id and line.event != "step":
            trial = " on trial" if line.on_trial else ""
            yield line.at, f"{line.event} in {line.life}, process {line.pid}{trial}"


def _recorded(id: str, journal: Iterable[dict[str, str]], ahead: float) -> Iterator[tuple[float, str]]:
    for entry in journal:
        if entry["id"] == id:
            words = " ".join(f"{name}={entry[name]}" for name in _TOLD if entry.get(name))
            yield recorded_at(entry) - ahead, f"journal: {words}"


def recorded_at(entry: dict[str, str]) -> float:
    """Return when a journal entry was made, in seconds since 1970."""
    return int(entry["at"].partition("-")[0]) / 1000
