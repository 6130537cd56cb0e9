"""What a run came to: for people, for programs, and as a row of docs/chaos.md."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from celery_poison.chaos.excuses import Wrong
from celery_poison.chaos.judge import HEALTHY
from celery_poison.chaos.run import Outcome
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
