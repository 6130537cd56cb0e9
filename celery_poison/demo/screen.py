"""How things stand at one moment, and how that is shown: in place on a terminal, line by line elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from celery_poison import Quarantine, State
from celery_poison.causes import describe
from celery_poison.demo.app import HEALTHY, POISONS, Poison
from celery_poison.demo.stage import SLOTS, Load, Stage
from celery_poison.model import MessageRecord
from celery_poison.text import count_of

#: Seconds between two lines in a pipe.
PAUSE = 3.0
#: Lines of the panel with its notes, and the prompt below it.
_ROOM = 24
#: Colours of sentences about what is not decided.
_UNDECIDED = {"waiting": "dim", "candidate": "yellow", "killing": "red"}
#: Where a poison message stands -> its mark, the mark's colour, and what is said of it.
FATES = {
    "waiting": ("·", "dim", "waits in its queue"),
    "killing": ("✗", "red", "has killed"),
    "candidate": ("●", "yellow", "candidate: it runs alone from now on"),
    "quarantined": ("✓", "green", "in quarantine: {cause}"),
    "released": ("→", "green", "repaired and released: its result arrived"),
    "failed": ("→", "dim", "given up: its caller was told"),
}
DECIDED = ("quarantined", "released", "failed")


@dataclass(frozen=True, slots=True)
class Row:
    """One poison; ``kills`` are those that it counted itself, ``fate`` is one of FATES."""

    poison: Poison
    kills: int
    fate: str
    cause: str = ""

    @property
    def loops(self) -> bool:
        """Whether it kills more often than the plugin would let it."""
        return self.fate == "killing" and self.kills > 2

    @property
    def sentence(self) -> str:
        return (
            "kills again and again" if self.loops else FATES[self.fate][2].format(cause=describe(self.cause))
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Attributes:
    workers: name -> whether it consumes at this moment.
    strangers: healthy tasks in quarantine.
    """

    seconds: float
    sent: int
    done: int
    workers: Mapping[str, bool]
    worker_deaths: int
    pool_deaths: int
    rows: tuple[Row, ...]
    strangers: int = 0

    @property
    def waiting(self) -> int:
        return self.sent - self.done

    @property
    def kept(self) -> int:
        """How many poison messages went into quarantine, those about which somebody decided since too."""
        return sum(row.fate in DECIDED for row in self.rows)


class Watch:
    """Looks at a stage, with or without the plugin on it."""

    def __init__(self, stage: Stage, load: Load, quarantine: Quarantine | None) -> None:
        self._stage, self._load, self._quarantine = stage, load, quarantine
        self._since = time.monotonic()
        #: Poisons whose result arrived: nothing in the ledger remembers them any more.
        self.released: set[str] = set()

    @property
    def seconds(self) -> float:
        """Since the watch began."""
        return time.monotonic() - self._since

    def look(self) -> Snapshot:
        supervisor, tally, records = self._stage.workers, self._stage.tally, self._records()
        kills, ids = tally.counts("killed"), self._load.poison
        return Snapshot(
            seconds=self.seconds,
            sent=len(self._load.healthy),
            done=len(tally.counts("finished")),
            workers={worker.name: worker.is_ready() and worker.is_alive() for worker in supervisor.workers},
            worker_deaths=len(supervisor.deaths),
            pool_deaths=tally.pool_deaths(SLOTS),
            rows=tuple(self._row(p, kills.get(p.name, 0), records.get(ids[p.name])) for p in POISONS),
            strangers=sum(record.task == HEALTHY and record.state == "NDLV" for record in records.values()),
        )

    def _records(self) -> dict[str, MessageRecord]:
        """Return what the ledger knows, by task id; a message that moved meanwhile counts where it went."""
        quarantine = self._quarantine
        if quarantine is None:
            return {}
        found = quarantine.list(candidates=True) + quarantine.list() + quarantine.list(state=State.FAIL)
        return {record.id: record for record in found}

    def _row(self, poison: Poison, kills: int, record: MessageRecord | None) -> Row:
        if poison.name in self.released:
            return Row(poison, kills, "released")
        if record is None:
            return Row(poison, kills, "killing" if kills else "waiting")
        fates = {State.NDLV: "quarantined", State.FAIL: "failed"}
        return Row(poison, kills, fates.get(State(record.state), "candidate"), record.cause)


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
        self._live = self._open() if terminal and self._console.height >= _ROOM else None

    def _open(self) -> Live:
        # Refreshed by hand: no thread of its own, nothing redirected.
        return Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def show(self, snapshot: Snapshot, *, last: bool = False) -> None:
        """Show how things stand; called several times a second, and once with ``last`` at the end."""
        if self._live:
            self._live.start()
            self._live.update(panel(snapshot, self._notes, guarded=self._guarded), refresh=True)
            return
        self._seconds = snapshot.seconds
        for row in snapshot.rows:
            self._tell_change(row)
        if last or snapshot.seconds >= self._due:
            self._due = snapshot.seconds + PAUSE
            self._line(progress(snapshot, guarded=self._guarded))

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

    def _tell_change(self, row: Row) -> None:
        former, self._known[row.poison.name] = self._known.get(row.poison.name), row.sentence
        if (row.loops or row.fate in DECIDED) and former != row.sentence:
            self._line(f"{row.poison.name}: {row.sentence}")

    def _line(self, text: str) -> None:
        self.say(f"{self._seconds:4.0f} s  {text}")


def panel(snapshot: Snapshot, notes: Iterable[str], *, guarded: bool) -> Group:
    """Return everything that the terminal shows while the demo runs."""
    facts = Table.grid(padding=(0, 2))
    facts.add_row(Text("  healthy", "dim"), *_measure(snapshot.done, snapshot.sent, "done"))
    if guarded:
        kept = _measure(snapshot.kept, len(snapshot.rows), "poison messages")
        facts.add_row(Text("  quarantine", "dim"), *kept)
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
        sentence = Text(row.sentence, _UNDECIDED.get(row.fate, ""), no_wrap=True, overflow="ellipsis")
        kills = f"{row.kills}×" if row.kills else ""
        mark = Text.assemble("  ", FATES[row.fate][:2])
        rows.add_row(mark, Text(row.poison.name, "bold"), Text(kills, justify="right"), sentence)
    return Group(facts, *lines, "", rows, "", *(f"  {note}" for note in notes))


def _measure(part: int, whole: int, what: str) -> tuple[RenderableType, str]:
    return ProgressBar(
        total=whole or 1, completed=part if whole else 1, width=30
    ), f"{part} of {whole} {what}"


def progress(snapshot: Snapshot, *, guarded: bool) -> str:
    """Return the same in one line."""
    kept = f", quarantine {snapshot.kept} of {len(snapshot.rows)}" if guarded else ""
    return f"healthy {snapshot.done} of {snapshot.sent} done{kept}, died: {deaths(snapshot)}"


def deaths(snapshot: Snapshot) -> str:
    return f"{count_of(snapshot.worker_deaths, 'worker')}, {count_of(snapshot.pool_deaths, 'pool process')}"
