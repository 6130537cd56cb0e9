"""Shows what happens: redrawn in place on a terminal, line by line everywhere else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TextIO

from celery_poison.demo import drawing
from celery_poison.demo.ink import Ink, Line
from celery_poison.demo.watch import Fate, Row, Snapshot

_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
#: Seconds between two lines in a pipe.
PAUSE = 3.0


class Screen(ABC):
    """Where the demo is shown."""

    def __init__(self, stream: TextIO, ink: Ink, *, guarded: bool) -> None:
        self._stream, self._ink, self._guarded = stream, ink, guarded

    @abstractmethod
    def show(self, snapshot: Snapshot) -> None:
        """Show how things stand; called several times a second."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Tell of something that the demo itself did."""

    def settle(self, snapshot: Snapshot) -> None:
        """Show how things stand at the end."""
        self.show(snapshot)

    def say(self, *lines: Line) -> None:
        """Print lines for good."""
        self._write("".join(f"{self._ink.render(line)}\n" for line in lines))

    def close(self) -> None:  # noqa: B027 - only a terminal has something to restore
        """Leave the terminal as it was found."""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class LiveScreen(Screen):
    """A panel that is drawn over and over in the same place."""

    def __init__(self, stream: TextIO, ink: Ink, *, guarded: bool) -> None:
        super().__init__(stream, ink, guarded=guarded)
        self._notes: list[str] = []
        self._drawn: list[str] = []
        self._hidden = False

    def show(self, snapshot: Snapshot) -> None:
        lines = drawing.panel(snapshot, self._notes, guarded=self._guarded)
        drawn = [self._ink.render(line, self._ink.width) for line in lines]
        if drawn == self._drawn:
            return
        back = f"\x1b[{len(self._drawn)}A\r" if self._drawn else _HIDE
        self._hidden = True
        self._write(back + "".join(f"{line}\x1b[K\n" for line in drawn))
        self._drawn = drawn

    def note(self, text: str) -> None:
        self._notes.append(text)

    def close(self) -> None:
        if self._hidden:
            self._hidden = False
            self._write(_SHOW)


class LineScreen(Screen):
    """One line every few seconds, and one for each thing that happens to a poison."""

    def __init__(self, stream: TextIO, ink: Ink, *, guarded: bool) -> None:
        super().__init__(stream, ink, guarded=guarded)
        self._due = 0.0
        self._known: dict[str, Row] = {}
        self._seconds = 0.0

    def show(self, snapshot: Snapshot) -> None:
        self._seconds = snapshot.seconds
        for row in snapshot.rows:
            self._tell_change(row)
        if snapshot.seconds >= self._due:
            self._due = snapshot.seconds + PAUSE
            self._line(drawing.progress(snapshot, guarded=self._guarded))

    def settle(self, snapshot: Snapshot) -> None:
        self._due = 0.0
        self.show(snapshot)

    def note(self, text: str) -> None:
        self._line(f"{drawing.clock(self._seconds)}  {text}")

    def _tell_change(self, row: Row) -> None:
        former = self._known.get(row.poison.name)
        self._known[row.poison.name] = row
        news = row.loops or row.fate in (Fate.QUARANTINED, Fate.RELEASED, Fate.FAILED)
        if news and (not former or former.sentence != row.sentence):
            self._line(drawing.change(row, self._seconds))

    def _line(self, text: str) -> None:
        self.say(((text, ""),))


#: Lines of the panel with its notes, and the prompt below it.
_ROOM = 24


def open_screen(stream: TextIO, *, guarded: bool) -> Screen:
    """Return the screen that suits the stream."""
    ink = Ink(stream)
    kind = LiveScreen if ink.is_terminal and ink.height >= _ROOM else LineScreen
    return kind(stream, ink, guarded=guarded)
