"""A progress bar on stderr for acts on many messages, if somebody is there to see it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

import click

#: Fewer are done before a bar has been read.
WORTH_A_BAR = 25


class Progress:
    """Counts steps; shows them only on a terminal."""

    def __init__(self, length: int) -> None:
        shown = length >= WORTH_A_BAR and sys.stderr.isatty()
        self._bar: Any = click.progressbar(length=length, file=sys.stderr, show_pos=True) if shown else None

    def step(self) -> None:
        if self._bar is not None:
            self._bar.update(1)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)
