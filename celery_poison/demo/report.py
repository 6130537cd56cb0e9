"""The end of the demo, in words and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from celery_poison.demo.drawing import counted, deaths
from celery_poison.demo.ink import Line
from celery_poison.demo.load import Load
from celery_poison.demo.promises import Decision, Findings, Promise
from celery_poison.demo.watch import Row, Snapshot

_WIDTH = 53
_RETURN = "  A killed worker's messages come back within two minutes here, after an hour by Celery's default."


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

    # --- in words ------------------------------------------------------------------------------

    def lines(self) -> list[Line]:
        return [(), *(self._told() if self.findings else self._compared())]

    def _told(self) -> list[Line]:
        assert self.findings is not None
        lines: list[Line] = [_promise(promise) for promise in self.promises]
        again = len(self.findings.ran_twice)
        if again:
            why = "ran twice: a poison took their worker along"
            lines += [(), ((f"  {counted(again, 'healthy task')} {why}.", "faint"),)]
        broken = sum(not promise.held for promise in self.promises)
        verdict = f"{broken} of {len(self.promises)} promises were broken" if broken else "Every promise held"
        lines += [(), ((f"  {verdict}, after {self.last.seconds:.0f} s.", "bad" if broken else "good"),)]
        return lines

    def _compared(self) -> list[Line]:
        last = self.last
        kills = sum(row.kills for row in last.rows)
        killed = f"{counted(len(last.rows), 'poison message')} killed {kills} times"
        left = f"{last.waiting} of {counted(last.sent, 'healthy task')} still wait" if last.waiting else ""
        return [
            ((f"  After {last.seconds:.0f} s without the plugin: {deaths(last)} died.", "bold"),),
            ((f"  {killed}, and would be for ever; {left or 'the healthy tasks slipped through'}.", ""),),
            ((_RETURN, ""),),
            (("  With it, each of them kills twice at most: run the demo without --plain.", "faint"),),
        ]

    # --- as JSON -------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "mode": "guarded" if self.findings else "plain",
            "ok": self.ok,
            "seed": self.seed,
            "seconds": round(self.last.seconds, 1),
            "healthy": {
                "sent": self.last.sent,
                "done": self.last.done,
                "waiting": self.last.waiting,
                "ran_twice": sorted(n for n, times in self.starts.items() if times > 1),
            },
            "deaths": {"workers": self.last.worker_deaths, "pool_processes": self.last.pool_deaths},
            "poison": [self._poison(row) for row in self.last.rows],
        }
        if self.findings is not None:
            told["release"] = _decision(self.findings.released)
            told["fail"] = _decision(self.findings.failed)
            told["promises"] = [asdict(promise) for promise in self.promises]
        return told

    def _poison(self, row: Row) -> dict[str, Any]:
        name = row.poison.name
        told = {"name": name, "what": row.poison.what, "id": self.load.poison[name], "kills": row.kills}
        record = self.findings.kept(name) if self.findings else None
        if self.findings is not None:
            told |= {
                "fate": row.fate.value,
                "cause": record.cause if record else "",
                "expected": sorted(row.poison.causes),
                "reason": record.story if record else "",
                "crashes": record.crashes if record else 0,
                "failures": record.failures if record else 0,
            }
        return told


def _promise(promise: Promise) -> Line:
    symbol, style = ("✓", "good") if promise.held else ("✗", "bad")
    evidence_style = "faint" if promise.held else "bad"
    return (
        ("  ", ""),
        (symbol, style),
        (f" {promise.promise:<{_WIDTH}}", ""),
        (promise.evidence, evidence_style),
    )


def _decision(decision: Decision | None) -> dict[str, Any] | None:
    return asdict(decision) if decision is not None else None
