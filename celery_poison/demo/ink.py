"""What a stream can show: colours, symbols, a width; and lines made of styled pieces."""

from __future__ import annotations

import os
import shutil
from typing import Any, TextIO

import click

#: Text and the name of its style ("" for none).
Piece = tuple[str, str]
Line = tuple[Piece, ...]

_STYLES: dict[str, dict[str, Any]] = {
    "": {},
    "good": {"fg": "green"},
    "bad": {"fg": "red"},
    "wait": {"fg": "yellow"},
    "bar": {"fg": "cyan"},
    "faint": {"dim": True},
    "bold": {"bold": True},
}
_PLAIN_SYMBOLS = str.maketrans(
    {"✓": "+", "✗": "x", "●": "*", "○": "o", "━": "#", "─": "-", "·": "-", "→": ">", "×": "x", "…": "."}
)
#: Where nobody wraps lines, they may be as long as they like.
ENDLESS = 10_000


class Ink:
    """Turns lines into text for one stream.

    Colours need a terminal and no ``NO_COLOR``; symbols beyond ASCII need an encoding that has them.
    """

    def __init__(self, stream: TextIO) -> None:
        self.is_terminal = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._colours = self.is_terminal and not os.environ.get("NO_COLOR")
        self._symbols = "utf" in (stream.encoding or "").lower()

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns - 1 if self.is_terminal else ENDLESS

    @property
    def height(self) -> int:
        return shutil.get_terminal_size().lines

    def render(self, line: Line, width: int = ENDLESS) -> str:
        """Return the line as text, cut to ``width``."""
        text, left = "", width
        for words, style in line:
            shown = words if len(words) <= left else words[: max(0, left - 1)] + "…"[:left]
            left -= len(shown)
            text += self._dye(shown if self._symbols else shown.translate(_PLAIN_SYMBOLS), style)
        return text.rstrip()

    def _dye(self, words: str, style: str) -> str:
        return click.style(words, **_STYLES[style]) if self._colours and style and words.strip() else words
