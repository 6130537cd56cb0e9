"""What was promised, held against what happened; and the end of the demo, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from celery_poison.demo.app import HANG, POISONS, expected
from celery_poison.demo.screen import Row, Snapshot, counted, deaths
from celery_poison.demo.stage import Load
from celery_poison.model import MessageRecord

MAX_CRASHES = 2
#: Names that a sentence lists; the others are counted.
_SHOWN = 8
_WIDTH = 53
_RETURN = "  A killed worker's messages come back within two minutes here, after an hour by Celery's default."


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
    released: Decision | None = None
    failed: Decision | None = None

    def kept(self, name: str) -> MessageRecord | None:
        return self.quarantined.get(self.poison_ids[name])


@dataclass(frozen=True, slots=True)
class Promise:
    promise: str
    held: bool
    evidence: str


def judge(findings: Findings) -> Iterator[Promise]:
    """Hold every promise against the findings: facts in, verdicts out."""
    missing = sorted(n for n, result in findings.results.items() if result != expected(n))
    done = f"{len(findings.results) - len(missing)} of {len(findings.results)}"
    lost = f"; missing or wrong: {_some(missing)}" if missing else ""
    yield Promise("every healthy task was done, as it was sent", not missing, done + lost)
    wrong = [*_not_kept(findings)]
    every = f"{len(POISONS)} of {len(POISONS)}"
    yield Promise("every poison is in quarantine, with the right cause", not wrong, "; ".join(wrong) or every)
    strangers = sorted(findings.quarantined.keys() - set(findings.poison_ids.values()))
    yield Promise("no healthy task is in quarantine", not strangers, _some(strangers) or "none")
    open_ = findings.candidates
    yield Promise("no suspicion is left open", not open_, _some(open_) or "none")
    kills = {name: _kills(findings, name) for name in findings.poison_ids}
    many = "; ".join(f"{name} {times} times" for name, times in kills.items() if times > MAX_CRASHES)
    yield Promise("no poison killed more than twice", not many, many or f"{max(kills.values())} at most")
    yield _decided("a released message, repaired, runs and answers", findings.released)
    yield _decided("a message given up raises where its caller waits", findings.failed)


def _not_kept(findings: Findings) -> Iterator[str]:
    for poison in POISONS:
        record = findings.kept(poison.name)
        if record is None:
            yield f"{poison.name} is not there"
        elif record.cause not in poison.causes:
            yield f"{poison.name} is there for {record.cause}"


def _kills(findings: Findings, name: str) -> int:
    """What the ledger or the poison itself says; the time limit counts for the one that only hangs."""
    record = findings.kept(name)
    own = 0 if name == HANG.name else findings.kills.get(name, 0)
    return max(own, record.crashes, record.failures) if record else own


def _decided(promise: str, decision: Decision | None) -> Promise:
    if decision is None:
        return Promise(promise, False, "not reached")
    return Promise(promise, decision.accepted and decision.came, f"{decision.poison}: {decision.told}")


def _some(items: Iterable[Any]) -> str:
    shown = [str(item) for item in items]
    rest = len(shown) - _SHOWN
    return ", ".join(shown[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is known at the end; ``findings`` and ``promises`` only where the plugin was on."""

    seed: int
    last: Snapshot
    load: Load
    starts: dict[int, int]
    findings: Findings | None = None
    promises: tuple[Promise, ...] = ()

    @property
    def ok(self) -> bool:
        return all(promise.held for promise in self.promises)

    @property
    def ran_twice(self) -> list[int]:
        """Healthy tasks that were started more than once."""
        return sorted(n for n, times in self.starts.items() if times > 1)

    def lines(self) -> list[Text]:
        return [Text(), *(self._guarded() if self.findings else self._compared())]

    def _guarded(self) -> list[Text]:
        lines = [_line(promise) for promise in self.promises]
        if again := len(self.ran_twice):
            why = "ran twice: a poison took their worker along"
            lines += [Text(), Text(f"  {counted(again, 'healthy task')} {why}.", "dim")]
        broken = sum(not promise.held for promise in self.promises)
        verdict = f"{broken} of {len(self.promises)} promises were broken" if broken else "Every promise held"
        told = f"  {verdict}, after {self.last.seconds:.0f} s."
        return [*lines, Text(), Text(told, "red" if broken else "green")]

    def _compared(self) -> list[Text]:
        last = self.last
        kills = sum(row.kills for row in last.rows)
        killed = f"{counted(len(last.rows), 'poison message')} killed {kills} times"
        left = f"{last.waiting} of {counted(last.sent, 'healthy task')} still wait" if last.waiting else ""
        return [
            Text(f"  After {last.seconds:.0f} s without the plugin: {deaths(last)} died.", "bold"),
            Text(f"  {killed}, and would be for ever; {left or 'the healthy tasks slipped through'}."),
            Text(_RETURN),
            Text("  With it, each of them kills twice at most: run the demo without --plain.", "dim"),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return what ``demo --json`` prints."""
        last, found = self.last, self.findings
        told: dict[str, Any] = {
            "mode": "guarded" if found else "plain",
            "ok": self.ok,
            "seed": self.seed,
            "seconds": round(last.seconds, 1),
            "healthy": {
                "sent": last.sent,
                "done": last.done,
                "waiting": last.waiting,
                "ran_twice": self.ran_twice,
            },
            "deaths": {"workers": last.worker_deaths, "pool_processes": last.pool_deaths},
            "poison": [self._poison(row) for row in last.rows],
        }
        if found is not None:
            told["release"] = asdict(found.released) if found.released else None
            told["fail"] = asdict(found.failed) if found.failed else None
            told["promises"] = [asdict(promise) for promise in self.promises]
        return told

    def _poison(self, row: Row) -> dict[str, Any]:
        name = row.poison.name
        told = {"name": name, "what": row.poison.what, "id": self.load.poison[name], "kills": row.kills}
        if self.findings is not None:
            record = self.findings.kept(name)
            told |= {
                "fate": row.fate,
                "cause": record.cause if record else "",
                "expected": sorted(row.poison.causes),
                "reason": record.story if record else "",
                "crashes": record.crashes if record else 0,
                "failures": record.failures if record else 0,
            }
        return told


def _line(promise: Promise) -> Text:
    mark = ("✓", "green") if promise.held else ("✗", "red")
    evidence = (promise.evidence, "dim" if promise.held else "red")
    return Text.assemble("  ", mark, f" {promise.promise:<{_WIDTH}}", evidence)
