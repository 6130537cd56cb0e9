"""Journals of a few entries, for tests that say exactly what happened."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
W1, W2 = "main@app-01/aaaa", "main@app-02/bbbb"


def journal_of(spark: Any, *entries: dict[str, Any]) -> Any:
    """Return a journal; ``s`` of each entry is its time in seconds, the rest as in docs/journal.md."""
    from celery_poison.pipeline.schema import JOURNAL

    return spark.createDataFrame(
        [_row(n, dict(e), JOURNAL.fieldNames()) for n, e in enumerate(entries)], JOURNAL
    )


def _row(number: int, told: dict[str, Any], names: list[str]) -> tuple[Any, ...]:
    at = START + timedelta(seconds=told.pop("s", number))
    ms = int(at.timestamp() * 1000)
    told |= {"entry": f"{ms}-{number}", "at": at, "seq": number, "date": at.date(), "v": 2}
    told["healthy"] = told.get("event") == "finished" and told.get("outcome") != "lost"
    if told.keys() - set(names):
        raise ValueError(told)
    return tuple(told.get(name) for name in names)


def ran(id: str, token: str, s: float, ms: int = 1000, **more: Any) -> dict[str, Any]:
    told = {"event": "finished", "outcome": "success", "task": "t.calm", "worker": W1, "state": "DLVD"}
    return {**told, "id": id, "mid": id, "token": token, "s": s, "runtime_ms": ms, **more}


def died(id: str, token: str, s: float, blame: str = "exact", ms: int = 1000, **more: Any) -> dict[str, Any]:
    told = {"event": "crashed", "outcome": blame, "cause": "signal:9", "task": "t.poison", "worker": W1}
    return {**told, "id": id, "mid": id, "token": token, "s": s, "runtime_ms": ms, "state": "TBDL", **more}


def cleared(id: str, token: str, s: float, **more: Any) -> dict[str, Any]:
    return {"event": "cleared", "id": id, "mid": id, "token": token, "s": s, "worker": W1, **more}
