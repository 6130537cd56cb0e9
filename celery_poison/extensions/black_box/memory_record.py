"""What a worker writes to the ledger about memory that grows, and what that proves of a death."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from signal import SIGKILL
from typing import Any, NamedTuple

from celery_poison.causes import MOST_NUMBERS, Evidence
from celery_poison.extensions.black_box.evidence import GrowthEvidence
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors

#: KiB of growth from which the ledger hears of a task, and from which a death names it.
NOTABLE, WORTH = 8 << 10, 32 << 10
#: Share of its limit that memory reaches within a second when an oom is likely.
LIKELY = 0.85
#: Rows in one message to the ledger, and characters of a name.
MOST, _LENGTH = 8, 200


class MemoryRow(NamedTuple):
    """The memory of one task, or of the process that many share; in KiB.

    Attributes:
        token: of its start; empty where that is not guarded, and for a process.
        task: its name; empty for a process.
        kb: private memory of its process.
        grown: by how much it grew since it began, and
        lately: in the last seconds.
        speed: that in KiB a second.
        at: where its Python code was, as ``function (file:line)``.
    """

    token: str
    task: str
    kb: int
    grown: int
    lately: int
    speed: int
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A worker's knowledge of its memory at one moment.

    Attributes:
        rows: of the tasks that grew, the most grown first.
        process: of the process that tasks share, if that grew.
        busy: how many tasks ran.
        used, limit: memory in use by all that shares the limit, and that limit, in KiB; 0: not known.
        curve: the memory of what is named, at equal distances of time until now, in KiB; seconds: over how
            many.
    """

    rows: Sequence[MemoryRow] = ()
    process: MemoryRow | None = None
    busy: int = 0
    used: int = 0
    limit: int = 0
    curve: Sequence[int] = ()
    seconds: float = 0.0

    def encode(self) -> str:
        told: dict[str, Any] = {"rows": self.rows, "process": self.process, "busy": self.busy}
        told |= {"curve": self.curve, "seconds": round(self.seconds, 1)} if self.curve else {}
        return json.dumps({**told, "used_kb": self.used, "limit_kb": self.limit}, separators=(",", ":"))

    @classmethod
    def decode(cls, raw: bytes) -> Growth | None:
        """Read it; None where it cannot be understood."""
        try:
            fields = json.loads(raw)
            rows = [_row(each) for each in fields["rows"]]
            process = _row(fields["process"]) if fields["process"] else None
            numbers = int(fields["busy"]), int(fields["used_kb"]), int(fields["limit_kb"])
            curve = tuple(int(each) for each in fields.get("curve", ())[-MOST_NUMBERS:])
            seconds = float(fields.get("seconds", 0.0))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None
        busy, used, limit = numbers
        known = cls(rows=rows, process=process, busy=busy, used=used, limit=limit)
        return replace(known, curve=curve, seconds=seconds)

    @property
    def named(self) -> MemoryRow | None:
        """The task that grew by far the most, else the process that tasks share; None where none stands out.

        What grew at last counts first, unless another has taken far more before.
        """
        rest = 0 if self.process is None else self.process.lately - sum(row.lately for row in self.rows)
        lately = _outstanding(self.rows, lambda row: row.lately, max(0, rest))
        most = max((row.grown for row in self.rows), default=0)
        if lately is not None and 3 * lately.grown >= 2 * most:
            return lately
        rest = 0 if self.process is None else self.process.grown - sum(row.grown for row in self.rows)
        ever = _outstanding(self.rows, lambda row: row.grown, max(0, rest))
        return ever or (self.process if self.process and self.process.grown >= WORTH else None)

    def told_of(self, evidence: Evidence, token: str) -> Evidence:
        """Return the evidence of a death with what this proves.

        Args:
            token: of the start that died; empty: the whole worker.
        """
        named = self.named
        if evidence.noticed == "frozen":  # it did not die
            return evidence
        if token:
            evidence = replace(evidence, grown_kb=self._grown(token, named))
        if named is not None and token and named.token == token:  # its peak was read at another moment
            evidence = replace(evidence, rss_kb=max(named.kb, evidence.rss_kb or 0))
        is_own = not token or named is None or named.token in ("", token)
        if named is None or not (is_own or evidence.noticed or evidence.signal == SIGKILL):
            return evidence  # a neighbour's memory explains no exit, and no other signal
        likely = 0 < LIKELY * self.limit <= self.used + named.speed or None
        grew = GrowthEvidence(
            grew_task=named.task,
            grew_to_kb=named.kb,
            grew_kb_s=named.speed or None,
            grew_at=named.at if is_own else "",
            grew_curve=tuple(self.curve),
            grew_for_s=self.seconds or None,
            flat=self._flat_beside(named),
        )
        return replace(evidence, oom_likely=likely).having(grew)

    def _grown(self, token: str, named: MemoryRow | None) -> int | None:
        """Return by how much a start grew; None where tasks share a process, and none stands out."""
        own = next((row for row in self.rows if row.token == token), None)
        if own is not None:
            return own.grown
        return None if self.process is not None and named in (None, self.process) else 0

    def _flat_beside(self, named: MemoryRow) -> int:
        """Return how many others hardly grew."""
        if named is self.process:
            return 0
        grew = sum(10 * row.grown >= named.grown for row in self.rows)
        return max(0, self.busy - grew)


def _row(fields: Sequence[Any]) -> MemoryRow:
    token, task, kb, grown, lately, speed, at = fields
    return MemoryRow(
        token=str(token)[:_LENGTH],
        task=str(task)[:_LENGTH],
        kb=int(kb),
        grown=int(grown),
        lately=int(lately),
        speed=int(speed),
        at=str(at)[: 2 * _LENGTH],
    )


def _outstanding(rows: Sequence[MemoryRow], measure: Any, rest: int) -> MemoryRow | None:
    """Return the row that measures at least twice as much as all others and the rest together."""
    if not rows:
        return None
    top = max(rows, key=measure)
    others = sum(max(0, measure(row)) for row in rows if row is not top)
    return top if measure(top) >= max(WORTH, 2 * (others + rest)) else None


def read(ledger: Ledger, worker: str) -> Growth | None:
    """Return a dead worker's last record of memory that grew; None if none did.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading which memory grew"):
        raw: Any = ledger.client.get(ledger.keys.of("growth", worker))
    return Growth.decode(raw) if raw else None
