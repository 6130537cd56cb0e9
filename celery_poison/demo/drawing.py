"""Draws a snapshot: as a panel for a terminal, as single lines for a pipe. Pure: facts in, lines out."""

from __future__ import annotations

from collections.abc import Iterable

from celery_poison.demo.ink import Line, Piece
from celery_poison.demo.watch import Fate, Row, Snapshot

_BAR = 30
_LABEL = 12
_SYMBOLS: dict[Fate, Piece] = {
    Fate.WAITING: ("·", "faint"),
    Fate.KILLING: ("✗", "bad"),
    Fate.CANDIDATE: ("●", "wait"),
    Fate.QUARANTINED: ("✓", "good"),
    Fate.RELEASED: ("→", "good"),
    Fate.FAILED: ("→", "faint"),
}
_HEADING: Line = (("    poison         kills", "faint"),)
_WORD_STYLES = {Fate.WAITING: "faint", Fate.CANDIDATE: "wait", Fate.KILLING: "bad"}


def panel(snapshot: Snapshot, notes: Iterable[str], *, guarded: bool) -> list[Line]:
    """Return everything that the terminal shows while the demo runs."""
    lines = [
        _measure("healthy", snapshot.done, snapshot.sent, "done"),
        _workers(snapshot),
        (_label("deaths"), (deaths(snapshot), "bad" if snapshot.worker_deaths else "")),
        (),
    ]
    if guarded:
        lines.insert(1, _measure("quarantine", snapshot.kept, len(snapshot.rows), "poison messages"))
    lines += [_HEADING, *(_row(row) for row in snapshot.rows)]
    lines += [(), *((("  " + note, ""),) for note in notes)]
    return lines


def progress(snapshot: Snapshot, *, guarded: bool) -> str:
    """Return the same in one line."""
    done = f"healthy {snapshot.done} of {snapshot.sent} done"
    kept = f", quarantine {snapshot.kept} of {len(snapshot.rows)}" if guarded else ""
    return f"{clock(snapshot.seconds)}  {done}{kept}, died: {deaths(snapshot)}"


def change(row: Row, seconds: float) -> str:
    """Return what became of one poison just now."""
    return f"{clock(seconds)}  {row.poison.name}: {row.sentence}"


def deaths(snapshot: Snapshot) -> str:
    return f"{counted(snapshot.worker_deaths, 'worker')}, {counted(snapshot.pool_deaths, 'pool process')}"


def clock(seconds: float) -> str:
    return f"{seconds:4.0f} s"


def counted(number: int, noun: str) -> str:
    """Return number and noun, in the plural where it is due."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


def _label(text: str) -> Piece:
    return (f"  {text:<{_LABEL}}", "faint")


def _measure(label: str, part: int, whole: int, what: str) -> Line:
    full = _BAR * part // whole if whole else _BAR
    style = "good" if part == whole else "bar"
    told = f"  {part} of {whole} {what}"
    return (_label(label), ("━" * full, style), ("─" * (_BAR - full), "faint"), (told, ""))


def _workers(snapshot: Snapshot) -> Line:
    pieces: list[Piece] = [_label("workers")]
    for name, up in snapshot.workers.items():
        pieces.append(("● " if up else "○ ", "good" if up else "wait"))
        pieces.append((f"{name} {'consumes' if up else 'starts':<10}", ""))
    return tuple(pieces)


def _row(row: Row) -> Line:
    symbol, style = _SYMBOLS[row.fate]
    kills = f"{row.kills}×" if row.kills else ""
    words = (row.sentence, _WORD_STYLES.get(row.fate, ""))
    return (("  ", ""), (symbol, style), (f" {row.poison.name:<13}", "bold"), (f"{kills:>6}  ", ""), words)
