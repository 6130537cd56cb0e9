"""The end of the demo, in words and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from celery_poison.demo.screen import counted, deaths
from celery_poison.demo.stage import Load
from celery_poison.demo.story import Findings, Promise
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
