"""Says what went wrong, by what the tasks themselves have written down. Pure: facts in, cases out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.excuses import DEATH, NOTICE, UNTRIED, Case, Wrong, find_excuse, settled, silences
from tests.chaos.runs import Blow, Facts, Fault, Run

#: Deaths until a poison is convicted: ``max(2, max_crashes)``.
MAX_DEATHS = 2
#: Kinds of faults in which a process stands still.
STANDSTILL = ("stop-4", "stop-15")
HEALTHY = "healthy"


class Finding(NamedTuple):
    """Something wrong, and the excuse for it; without one it is a failure."""

    case: Case
    excuse: str


@dataclass
class Outcome:
    """What became of a run.

    ``quiet`` is how many seconds it took until nothing was left to do; ``stories`` are of messages that
    went wrong, by their ids, the gravest first.
    """

    plan: list[Fault]
    facts: Facts
    findings: list[Finding]
    quiet: float
    stories: dict[str, list[str]] = field(default_factory=dict)

    @property
    def failures(self) -> list[Case]:
        return [case for case, excuse in self.findings if not excuse]


def judge(facts: Facts) -> list[Finding]:
    """Return everything that is not as it should be."""
    cases = [*_lost(facts), *_twice(facts), *_overlapping(facts), *_free(facts)]
    cases += [*_convicted(facts), *_ended(facts), *_left(facts), *_accused(facts)]
    blows = [*facts.blows, *silences(facts.blows)]
    found = [Finding(case, find_excuse(case, blows, facts.broker)) for case in cases]
    return [*found, *_killed_too_often(facts, facts.blows)]


def judge_plain(facts: Facts) -> list[Finding]:
    """Return what is lost, done twice, or kills again and again; nothing excuses that."""
    cases = [*_lost(facts), *_twice(facts)]
    return [*(Finding(case, "") for case in cases), *_killed_too_often(facts, [])]


def _lost(facts: Facts) -> Iterator[Case]:
    for id, sent in facts.sent.items():
        runs = tuple(facts.runs.get(id, ()))
        is_done = any(run.end is not None for run in runs)
        if sent.kind == HEALTHY and sent.sure and not is_done and id not in facts.convicted:
            yield Case(Wrong.LOST, id, f"begun {len(runs)} times", sent.at, runs)


def _twice(facts: Facts) -> Iterator[Case]:
    for id, runs in facts.runs.items():
        ended = sorted((run for run in runs if run.end is not None), key=lambda run: run.end or 0.0)
        for first, second in pairwise(ended):
            text, by = f"in {first.life} and {second.life}", settled(first, facts.blows)
            # The copy that was let in may have been killed; the one that was done came of that.
            killed = [run for run in runs if run.end is None and first.begin < run.begin < second.begin]
            yield Case(Wrong.TWICE, id, text, first.begin, (first, *killed, second), settled=by)


def _overlapping(facts: Facts) -> Iterator[Case]:
    for id, runs in facts.runs.items():
        for number, first in enumerate(runs):
            for second in runs[number + 1 :]:
                if seconds := _together(first, second, facts.blows):
                    text = f"in {first.life} and {second.life}, for {seconds:.2f} s"
                    yield Case(Wrong.OVERLAP, id, text, second.begin, (first, second))


def _together(first: Run, second: Run, blows: list[Blow]) -> float:
    """Return for how many seconds two runs were at work at one time."""
    begin, end = max(first.begin, second.begin), min(first.last, second.last)
    still = [
        (max(begin, blow.began), min(end, blow.ended))
        for blow in blows
        if blow.name in STANDSTILL and {first.life, second.life} & {*blow.lives}
    ]
    together, reached = end - begin, float("-inf")
    for since, until in sorted(still):  # which may overlap
        together -= max(0.0, until - max(since, reached))
        reached = max(reached, until)
    return max(0.0, together)


def _free(facts: Facts) -> Iterator[Case]:
    for id, sent in facts.sent.items():
        if sent.kind != HEALTHY and sent.sure and id not in facts.convicted:
            kills = _kills(facts, id)
            yield Case(Wrong.FREE, id, f"{len(kills)} deaths", sent.at, kills)


def _killed_too_often(facts: Facts, blows: list[Blow]) -> Iterator[Finding]:
    """A death that something else disturbed does not count."""
    for id, sent in facts.sent.items():
        kills = _kills(facts, id)
        excuses = [find_excuse(Case(Wrong.KILLED, id, "", sent.at, (run,)), blows) for run in kills]
        if len(kills) > MAX_DEATHS:
            case = Case(Wrong.KILLED, id, f"{len(kills)} deaths", sent.at, kills)
            yield Finding(case, "" if excuses.count("") > MAX_DEATHS else next(filter(None, excuses)))


def _kills(facts: Facts, id: str) -> tuple[Run, ...]:
    return tuple(run for run in facts.runs.get(id, ()) if run.kill is not None)


def _convicted(facts: Facts) -> Iterator[Case]:
    for id in sorted(facts.convicted):
        if id not in facts.sent or facts.sent[id].kind == HEALTHY:
            runs = tuple(facts.runs.get(id, ()))
            text = f"begun {len(runs)} times" + ("" if facts.tried else f", {UNTRIED}")
            yield Case(Wrong.CONVICTED, id, text, facts.convicted[id], runs)


def _ended(facts: Facts) -> Iterator[Case]:
    gave_up = {life for life, _ in facts.complaints}
    kills = [run for runs in facts.runs.values() for run in runs if run.kill is not None]
    for blow in facts.blows:
        if blow.name == DEATH and not gave_up & {*blow.lives}:
            life = blow.lives[0]
            if not any(run.life == life and 0 <= blow.began - (run.kill or 0) < NOTICE for run in kills):
                yield Case(Wrong.ENDED, "", f"{life}: {blow.note}", blow.began, life=life)
    for life, text in facts.complaints:
        yield Case(Wrong.ENDED, "", f"{life}: {text}", life=life)


def _left(facts: Facts) -> Iterator[Case]:
    for name, count in facts.left.items():
        yield Case(Wrong.LEFT, "", f"{name}: {count}")
    for text, ids in facts.known.items():
        for id in sorted(ids):
            sent, runs = facts.sent.get(id), tuple(facts.runs.get(id, ()))
            by = max((settled(run, facts.blows) for run in runs if run.end is not None), default=0.0)
            yield Case(Wrong.LEFT, id, text, sent.at if sent else 0.0, runs, settled=by)


def _accused(facts: Facts) -> Iterator[Case]:
    for life, word, at in facts.accused:
        yield Case(Wrong.ACCUSED, "", f"{life}: {word}", at, life=life)
