"""How the demo is shown: in place on a terminal, line by line elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from celery_poison.basics.text import count_of
from celery_poison.causes import describe
from celery_poison.demo.stage import DECIDED, PoisonRow, StageSnapshot

#: Seconds between two lines in a pipe.
PAUSE = 3.0
#: Lines of the panel with its notes, and the prompt below it.
_ROOM = 24
#: Where a poison message stands -> its mark, the mark's colour, what is said of it, and the colour of that.
LOOKS = {
    "waiting": ("·", "dim", "waits in its queue", "dim"),
    "killing": ("✗", "red", "has killed", "red"),
    "candidate": ("●", "yellow", "candidate: it runs alone from now on", "yellow"),
    "quarantined": ("✓", "green", "in quarantine: {cause}", ""),
    "released": ("→", "green", "repaired and released: its result arrived", ""),
    "failed": ("→", "dim", "given up: its caller has the failure", ""),
}


def _sentence(row: PoisonRow) -> str:
    if row.fate == "killing" and row.kills > 2:
        return "kills again and again"
    return LOOKS[row.fate][2].format(cause=describe(row.record.cause) if row.record else "")


class Screen:
    """Where the demo is shown: a terminal that is high enough gets a panel, all else lines.

    Colours need a terminal and no ``NO_COLOR``.
    """

    def __init__(self, stream: TextIO, *, guarded: bool) -> None:
        if "utf" not in (stream.encoding or "").lower() and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # symbols beyond ASCII become question marks
        terminal = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        colours = terminal and not os.environ.get("NO_COLOR")
        self._console = Console(
            file=stream,
            force_terminal=terminal,
            color_system="standard" if colours else None,
            highlight=False,
            markup=False,
            soft_wrap=not terminal,
        )
        self._guarded = guarded
        self._notes: list[str] = []
        self._known: dict[str, str] = {}
        self._seconds = self._due = 0.0
        self._live: Live | None = None
        if terminal and self._console.height >= _ROOM:
            # Refreshed by hand: no thread of its own, nothing redirected.
            self._live = Live(
                console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )

    def show(self, snapshot: StageSnapshot, *, last: bool = False) -> None:
        """Show how things stand; called several times a second, and once with ``last`` at the end."""
        if self._live:
            self._live.start()
            self._live.update(panel(snapshot, self._notes, guarded=self._guarded), refresh=True)
            return
        self._seconds = snapshot.seconds
        for row in snapshot.rows:
            sentence = _sentence(row)
            if (row.fate in DECIDED or row.kills > 2) and self._known.get(row.poison.name) != sentence:
                self._line(f"{row.poison.name}: {sentence}")
            self._known[row.poison.name] = sentence
        if last or snapshot.seconds >= self._due:
            self._due = snapshot.seconds + PAUSE
            kept = f", quarantine {snapshot.kept} of {len(snapshot.rows)}" if self._guarded else ""
            done = f"healthy {snapshot.done} of {snapshot.sent} done"
            self._line(f"{done}{kept}, died: {deaths(snapshot)}")

    def note(self, text: str) -> None:
        """Tell of something that the demo itself did."""
        if self._live:
            self._notes.append(text)
        else:
            self._line(text)

    def say(self, *lines: RenderableType) -> None:
        """Print lines for good."""
        for line in lines:
            self._console.print(line)

    def close(self) -> None:
        """Leave the terminal as it was found."""
        if self._live:
            self._live.stop()

    def _line(self, text: str) -> None:
        self.say(f"{self._seconds:4.0f} s  {text}")


def panel(snapshot: StageSnapshot, notes: Iterable[str], *, guarded: bool) -> Group:
    """Return everything that the terminal shows while the demo runs."""
    parts = [("  healthy", snapshot.done, snapshot.sent, "done")]
    if guarded:
        parts.append(("  quarantine", snapshot.kept, len(snapshot.rows), "poison messages"))
    facts = Table.grid(padding=(0, 2))
    for title, part, whole, what in parts:
        bar = ProgressBar(total=whole or 1, completed=part if whole else 1, width=30)
        facts.add_row(Text(title, "dim"), bar, f"{part} of {whole} {what}")
    workers = [
        (f"{'●' if up else '○'} {name} {'consumes' if up else 'starts'}  ", "green" if up else "yellow")
        for name, up in snapshot.workers.items()
    ]
    lines = [
        Text.assemble(("  workers     ", "dim"), *workers),
        Text.assemble(("  deaths      ", "dim"), (deaths(snapshot), "red" if snapshot.worker_deaths else "")),
    ]
    rows = Table.grid(padding=(0, 2))
    rows.add_row("", Text("poison", "dim"), Text("kills", "dim"), "")
    for row in snapshot.rows:
        mark, colour, _, tone = LOOKS[row.fate]
        sentence = Text(_sentence(row), tone, no_wrap=True, overflow="ellipsis")
        kills = Text(f"{row.kills}×" if row.kills else "", justify="right")
        rows.add_row(Text.assemble("  ", (mark, colour)), Text(row.poison.name, "bold"), kills, sentence)
    return Group(facts, *lines, "", rows, "", *(f"  {note}" for note in notes))


def deaths(snapshot: StageSnapshot) -> str:
    return f"{count_of(snapshot.worker_deaths, 'worker')}, {count_of(snapshot.pool_deaths, 'pool process')}"
