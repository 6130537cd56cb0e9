"""What celery_poison promises, held against what happened: facts in, verdicts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_poison.demo.poisons import HANG, POISONS
from celery_poison.demo.tasks import expected
from celery_poison.records import MessageRecord

MAX_CRASHES = 2
#: Names that a sentence lists; the others are counted.
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that the promises are judged by.

    Attributes:
        results: what the result backend holds for each healthy task, by number; None if nothing.
        starts: how often each healthy task was started, by its own count.
        kills: how often each poison killed, by its own count and name.
        quarantined: the records in quarantine before anybody decided, by task id.
        candidates: task ids of the candidates, at the end.
        poison_ids: task id of each poison, by name.
        released, failed: what the two decisions came to; None where they were not reached.
    """

    results: Mapping[int, Any]
    starts: Mapping[int, int]
    kills: Mapping[str, int]
    quarantined: Mapping[str, MessageRecord]
    candidates: tuple[str, ...]
    poison_ids: Mapping[str, str]
    released: Decision | None
    failed: Decision | None

    @property
    def done(self) -> list[int]:
        return [n for n, result in self.results.items() if result == expected(n)]

    @property
    def ran_twice(self) -> list[int]:
        """Healthy tasks that were started more than once."""
        return sorted(n for n, times in self.starts.items() if times > 1)

    def kept(self, name: str) -> MessageRecord | None:
        return self.quarantined.get(self.poison_ids[name])


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about a poison, and what its caller saw.

    Attributes:
        accepted: the quarantine did as it was told.
        came: what should reach the caller did.
        told: what that was, or what went wrong, in a few words; ``details``: in full.
    """

    poison: str
    accepted: bool
    came: bool
    told: str
    details: str = ""


@dataclass(frozen=True, slots=True)
class Promise:
    promise: str
    held: bool
    evidence: str


def judge(findings: Findings) -> list[Promise]:
    """Hold every promise against the findings."""
    return [
        _all_done(findings),
        _all_kept(findings),
        _no_healthy_one_kept(findings),
        _no_candidate_left(findings),
        _few_kills(findings),
        _decided("a released message, repaired, runs and answers", findings.released),
        _decided("a message given up raises where its caller waits", findings.failed),
    ]


def _all_done(findings: Findings) -> Promise:
    missing = sorted(findings.results.keys() - set(findings.done))
    evidence = f"{len(findings.done)} of {len(findings.results)}"
    evidence += f"; missing or wrong: {_some(missing)}" if missing else ""
    return Promise("every healthy task was done, as it was sent", not missing, evidence)


def _all_kept(findings: Findings) -> Promise:
    wrong = []
    for poison in POISONS:
        record = findings.kept(poison.name)
        if record is None:
            wrong.append(f"{poison.name} is not there")
        elif record.cause not in poison.causes:
            wrong.append(f"{poison.name} is there for {record.cause}")
    evidence = "; ".join(wrong) or f"{len(POISONS)} of {len(POISONS)}"
    return Promise("every poison is in quarantine, with the right cause", not wrong, evidence)


def _no_healthy_one_kept(findings: Findings) -> Promise:
    strangers = sorted(findings.quarantined.keys() - set(findings.poison_ids.values()))
    return Promise("no healthy task is in quarantine", not strangers, _some(strangers) or "none")


def _no_candidate_left(findings: Findings) -> Promise:
    return Promise("no suspicion is left open", not findings.candidates, _some(findings.candidates) or "none")


def _few_kills(findings: Findings) -> Promise:
    """Both the ledger and the poison itself say so; the time limit counts for the one that only hangs."""
    wrong, most = [], 0
    for name in findings.poison_ids:
        record = findings.kept(name)
        counts = [findings.kills.get(name, 0) if name != HANG.name else 0]
        counts += [record.crashes, record.failures] if record is not None else []
        most = max(most, *counts)
        if max(counts) > MAX_CRASHES:
            wrong.append(f"{name} {max(counts)} times")
    return Promise("no poison killed more than twice", not wrong, "; ".join(wrong) or f"{most} at most")


def _decided(promise: str, decision: Decision | None) -> Promise:
    if decision is None:
        return Promise(promise, False, "not reached")
    return Promise(promise, decision.accepted and decision.came, f"{decision.poison}: {decision.told}")


def _some(items: Any) -> str:
    shown = [str(item) for item in items]
    rest = len(shown) - _SHOWN
    return ", ".join(shown[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
