"""One run of the program: plan, stage, faults, judge."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import redis

from celery_poison.chaos.excuses import ENDS, GATE, IN_MINGLE, Wrong
from celery_poison.chaos.judge import HEALTHY, Finding, Outcome, judge, judge_plain
from celery_poison.chaos.load import Load
from celery_poison.chaos.plan import Fault
from celery_poison.chaos.remains import (
    Watch,
    counted,
    ended,
    entries,
    flagged,
    left_behind,
    traces,
    unfinished,
)
from celery_poison.chaos.report import recorded_at, story
from celery_poison.chaos.runs import Blow, Facts, runs_of
from celery_poison.chaos.stage import Options, Stage
from celery_poison.chaos.torment import Torment
from celery_poison.testing.basics import Interruptions

#: Seconds that the fleet gets to finish what it has: at most, and without anything changing. Plain Celery
#: looks only every hundred seconds for what a dead worker held.
PATIENCE, STANDSTILL, PLAIN_STANDSTILL = 600.0, 45.0, 130.0
#: Stories that are told.
STORIES = 20
#: What Celery says when a worker gives up, and the traceback behind it.
UNRECOVERABLE = re.compile(r"(Unrecoverable error: .*)((?:\n(?!\[).*)*)")

Say = Callable[[str], None]


class Program:
    """Plays plans to fleets of one kind.

    Args:
        seconds: how long faults may strike.
        seed: of the load.
        interruptions: whether somebody wants it to end.
    """

    def __init__(
        self, options: Options, seconds: float, seed: int, say: Say, interruptions: Interruptions
    ) -> None:
        self._options, self._seconds, self._seed = options, seconds, seed
        self._say, self._interruptions = say, interruptions

    def run(self, plan: list[Fault], directory: Path) -> Outcome:
        """Play a plan to a fleet of its own, and judge.

        Raises:
            Interrupted: somebody wants it to end.
        """
        with Stage(self._options, directory, self._interruptions.stopping) as stage:
            stage.start_fleet()
            load = Load(stage, self._seed)
            torment = Torment(stage, load, self._say)
            with Watch(stage) as watch:
                with load:
                    torment.play(plan, self._seconds)
                began = time.monotonic()
                self._await_quiet(stage, load, watch)
            self._interruptions.pause()
            return self._judge(stage, load, torment, watch, time.monotonic() - began)

    def _await_quiet(self, stage: Stage, load: Load, watch: Watch) -> None:
        """Wait until nothing is left to do, or patience ends."""
        began = changed = time.monotonic()
        standstill = PLAIN_STANDSTILL if self._options.plain else STANDSTILL
        left = _open(stage, load, watch.convicted)
        while left and time.monotonic() < min(began + PATIENCE, changed + standstill):
            stage.wait(0.5)
            if stage.stopping.is_set():
                return
            before, left = left, _open(stage, load, watch.convicted)
            changed = changed if left == before else time.monotonic()
        self._say(f"after {time.monotonic() - began:.0f} s {left or 'nothing'} is left to do")

    def _judge(self, stage: Stage, load: Load, torment: Torment, watch: Watch, quiet: float) -> Outcome:
        left, journal, convicted = counted(stage), watch.journal(), watch.convicted
        traced = traces(stage, _not_done(stage, load) - {*convicted})
        plain = stage.options.plain
        remembered, expiring = (set(), set()) if plain else flagged(stage)
        ends = set() if plain or stage.rabbit else ended(stage)
        on_record = [] if plain else entries(stage)
        stage.stop_fleet()
        after = {name: count for name, count in counted(stage).items() if name not in left}
        left |= {f"{name}, when all have left": count for name, count in after.items()}
        if not plain:
            left |= left_behind(stage)
        stage.log.update()
        ahead = time.time() - time.monotonic()
        blows = [*torment.blows, *stage.deaths, *_gates(journal, ahead)]
        facts = Facts(
            sent=load.sent,
            runs=runs_of(stage.log.lines),
            blows=sorted(blows, key=lambda blow: blow.began),
            broker=stage.options.broker,
            tried=stage.options.trial != "off",
            convicted=convicted,
            flagged=frozenset(remembered),
            expiring=frozenset(expiring),
            ended=frozenset(ends),
            left=left,
            complaints=[*_complaints(stage), *(("", text) for text in torment.broken)],
            traces=traced,
        )
        outcome = Outcome(torment.plan, facts, (judge_plain if plain else judge)(facts), quiet)
        logs = stage.logs()
        outcome.stories = {
            id: story(id, facts, stage.log.lines, journal, ahead, logs) for id in _worst(outcome.failures)
        }
        (stage.directory / "on-record.txt").write_text("".join(f"{entry}\n" for entry in on_record))
        _write_down(stage.directory, outcome, journal)
        return outcome


def _open(stage: Stage, load: Load, convicted: dict[str, float]) -> dict[str, int]:
    try:
        missing = len(_not_done(stage, load) - {*convicted})
        left = unfinished(stage) | ({"not done": missing} if missing else {})
        return {name: count for name, count in left.items() if name != ENDS}
    except (redis.RedisError, OSError):
        return {"server": 1}


def _not_done(stage: Stage, load: Load) -> set[str]:
    stage.log.update()
    sure = {id for id, sent in load.sent.items() if sent.sure and sent.kind == HEALTHY}
    return sure - stage.log.ended


def _gates(journal: Iterable[dict[str, str]], ahead: float) -> list[Blow]:
    """Return when the fleet gate was closed."""
    gates: list[Blow] = []
    for entry in journal:
        at = recorded_at(entry) - ahead
        if entry["event"] == "gate_closed":
            gates.append(Blow(GATE, at, note=entry["note"]))
        elif entry["event"] == "gate_lifted" and gates:
            gates[-1].ended = at
    return gates


def _worst(failures: list[Finding]) -> list[str]:
    """Return ids of messages that went wrong, the lost ones first."""
    found = sorted(failures, key=lambda finding: finding.case.wrong is not Wrong.LOST)
    return list(dict.fromkeys(finding.case.id for finding in found if finding.case.id))[:STORIES]


def _complaints(stage: Stage) -> list[tuple[str, str]]:
    return [
        (life, f"{found} {IN_MINGLE}" if "consumer/mingle.py" in trace else found)
        for life, worker in stage.lives.items()
        for found, trace in UNRECOVERABLE.findall(worker.log_text())
    ]


def _write_down(directory: Path, outcome: Outcome, journal: Iterable[Any]) -> None:
    rows = {
        "plan": map(asdict, outcome.plan),
        "blows": map(asdict, outcome.facts.blows),
        "sent": ({"id": id, **asdict(sent)} for id, sent in outcome.facts.sent.items()),
        "journal": journal,
        "findings": ({"excuse": found.excuse, **asdict(found.case)} for found in outcome.findings),
    }
    for name, of_kind in rows.items():
        lines = (f"{json.dumps(row, default=str)}\n" for row in of_kind)
        (directory / f"{name}.jsonl").write_text("".join(lines))
    stories = ("\n".join([id, *told, ""]) for id, told in outcome.stories.items())
    (directory / "stories.txt").write_text("\n".join(stories))
