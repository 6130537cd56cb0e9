"""Which messages a page shows, as its address says: state, filter, order and position."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self
from urllib.parse import urlencode

from celery_poison.flower.desk import Desk
from celery_poison.model import MessageRecord
from celery_poison.quarantine.filters import Filter
from celery_poison.states import State

ROWS = 50
#: Word in the address -> its tab.
TABS = {
    "NDLV": "In quarantine",
    "candidates": "Candidates",
    "DLNG": "Running",
    "TBDL": "Waiting",
    "FAIL": "Given up",
}


class Found(NamedTuple):
    """One page of rows; ``total`` is None where nobody counts."""

    rows: Sequence[MessageRecord]
    total: int | None
    more: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """What a list shows. ``text`` is a filter as on the command line, or empty for everything."""

    state: str = "NDLV"
    text: str = ""
    offset: int = 0
    oldest_first: bool = False

    @classmethod
    def parse(cls, state: str, text: str, offset: str, order: str) -> Self:
        """Read an address; what makes no sense there becomes the default."""
        return cls(
            state if state in TABS else "NDLV",
            text.strip(),
            int(offset) if offset.isdecimal() and len(offset) < 10 else 0,
            order == "oldest",
        )

    @property
    def where(self) -> Filter | None:
        """The filter.

        Raises:
            BadFilter: the text is none.
        """
        return Filter.parse(self.text) if self.text else None

    @property
    def query(self) -> str:
        """This list as the query of an address."""
        words = {
            "state": self.state if self.state != "NDLV" else "",
            "filter": self.text,
            "offset": str(self.offset or ""),
            "order": "oldest" if self.oldest_first else "",
        }
        return urlencode({name: word for name, word in words.items() if word})

    def at(self, offset: int) -> Self:
        return replace(self, offset=max(0, offset))

    def turned(self) -> Self:
        return replace(self, offset=0, oldest_first=not self.oldest_first)

    @classmethod
    def of(cls, **conditions: str) -> Self:
        """Return the list of what is in quarantine and has exactly these values."""
        return cls(text=" ".join(shlex.quote(f"{name}={_literal(v)}") for name, v in conditions.items()))

    async def find(self, desk: Desk, rows: int = ROWS) -> Found:
        """Return one page of it.

        Raises:
            BadFilter: the filter is none.
            LedgerUnavailable: Redis does not answer, and what is asked for is not in memory.
        """
        where = self.where
        if self.state == "NDLV":
            view = desk.snapshot.view
            chosen = view.records if where is None else await desk.think(lambda: view.matching(where))
            return self._page(chosen, rows)
        if self.state == "FAIL":
            shelf = desk.shelf(State.FAIL)
            return self._page(await desk.ask(lambda: shelf.refresh().matching(where)), rows)
        state = {"candidates": True} if self.state == "candidates" else {"state": self.state}
        found = await desk.ask(
            lambda: desk.quarantine.list(**state, where=where, limit=rows + 1, offset=self.offset)
        )
        return Found(found[:rows], None, len(found) > rows)

    def _page(self, records: Sequence[MessageRecord], rows: int) -> Found:
        total, end = len(records), self.offset + rows
        if not self.oldest_first:
            shown = records[self.offset : end]
        else:
            shown = records[max(0, total - end) : max(0, total - self.offset)][::-1]
        return Found(shown, total, total > end)


def _literal(value: str) -> str:
    """Return a pattern that matches only this value."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in value)
