"""One run of the program: plan, stage, faults, judge."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from celery_poison import Quarantine
from celery_poison.chaos.excuses import DEATH
from celery_poison.chaos.faults import Torment
from celery_poison.chaos.judge import HEALTHY, Finding, judge, judge_plain
from celery_poison.chaos.load import Load
from celery_poison.chaos.plan import Fault
from celery_poison.chaos.remains import remains
from celery_poison.chaos.runs import Blow, Facts, runs_of
from celery_poison.chaos.stage import Options, Stage
from celery_poison.states import State

#: Seconds that the fleet gets to finish what it has: at most, and without anything changing.
PATIENCE, STANDSTILL = 180.0, 45.0
#: What Celery says when a worker gives up.
UNRECOVERABLE = re.compile(r"Unrecoverable error: .*")

Say = Callable[[str], None]


@dataclass
class Outcome:
    """What became of a run."""

    plan: list[Fault]
    facts: Facts
    findings: list[Finding]
    seconds: float
    quiet_after: float
    journal: list[dict[str, str]] = field(default_factory=list)

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.excuse]


def run(options: Options, plan: list[Fault], seconds: float, seed: int, directory: Path, say: Say) -> Outcome:
    """Play a plan to a fleet of one's own, and judge."""
    with Stage(options, directory) as stage:
        say(f"{options.workers} workers of {options.slots} ({options.pool}) on {options.broker}")
        stage.start_fleet()
        load = Load(stage, seed)
        torment = Torment(stage, load, say)
        began = time.monotonic()
        with load:
            torment.play(plan, seconds)
        quiet = _await_quiet(stage, load, say)
        facts, journal = _facts(stage, load, torment)
        findings = (judge_plain if options.plain else judge)(facts)
        _write_down(directory, plan, facts, journal)
        return Outcome(plan, facts, findings, time.monotonic() - began, quiet, journal)


def _await_quiet(stage: Stage, load: Load, say: Say) -> float:
    """Wait until nothing is left to do, or patience ends; return the seconds."""
    began = changed = time.monotonic()
    left = _unfinished(stage, load)
    while left and time.monotonic() < min(began + PATIENCE, changed + STANDSTILL):
        stage.wait(0.5)
        before, left = left, _unfinished(stage, load)
        if left != before:
            changed = time.monotonic()
    say(f"quiet after {time.monotonic() - began:.0f} s: {left or 'nothing is left'}")
    return time.monotonic() - began


def _unfinished(stage: Stage, load: Load) -> dict[str, int]:
    try:
        left = remains(stage)
    except (redis.RedisError, OSError):
        return {"server": 1}
    stage.log.update()
    open_ = [id for id, sent in load.sent.items() if sent.sure and sent.kind == HEALTHY]
    missing = len({*open_} - stage.log.ended)
    return left | ({"not done": missing} if missing else {})


def _facts(stage: Stage, load: Load, torment: Torment) -> tuple[Facts, list[dict[str, str]]]:
    left = remains(stage)
    convicted: frozenset[str] = frozenset()
    journal: list[dict[str, str]] = []
    if not stage.options.plain:
        queries = Quarantine(stage.app).queries
        convicted = frozenset(id for _, id in queries.kept_ids(State.NDLV))
        journal = queries.journal(count=1_000_000)
    stage.stop_fleet()
    after = remains(stage)
    stage.log.update()
    deaths = [
        Blow(DEATH, end.at, end.at, (end.life,), note=f"exit status {end.status}") for end in stage.endings
    ]
    left |= {f"{name} when all workers had left": count for name, count in after.items()}
    facts = Facts(
        sent=load.sent,
        runs=runs_of(stage.log.lines),
        blows=sorted([*torment.blows, *deaths], key=lambda blow: blow.began),
        convicted=convicted,
        left=left,
        complaints=_complaints(stage),
    )
    return facts, journal


def _complaints(stage: Stage) -> list[str]:
    return [
        f"{life}: {found}"
        for life, worker in stage.lives.items()
        for found in UNRECOVERABLE.findall(worker.log_text())
    ]


def _write_down(directory: Path, plan: list[Fault], facts: Facts, journal: list[dict[str, str]]) -> None:
    from dataclasses import asdict

    def dump(name: str, rows: Any) -> None:
        (directory / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    dump("plan.jsonl", map(asdict, plan))
    dump("blows.jsonl", map(asdict, facts.blows))
    dump("sent.jsonl", ({"id": id, **asdict(sent)} for id, sent in facts.sent.items()))
    dump("journal.jsonl", journal)
