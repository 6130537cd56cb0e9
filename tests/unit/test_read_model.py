"""The read model: one for Flower's pages, acts, groups and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

from celery_poison.model import MessageRecord
from celery_poison.quarantine.read_model import Kept, View
from celery_poison.states import State
from tests import PATIENCE

MANY = 1000


class Ledger:
    """A quarantine of many; its reader stops before it reads all of it."""

    def __init__(self) -> None:
        self.reads = 0
        self.is_stuck, self.go_on = Event(), Event()

    def now_ms(self) -> int:
        return 1_000_000

    def totals(self) -> dict[str, int]:
        return {"quarantined": MANY}

    def kept_index(self, state: State, limit: int = 0) -> list[tuple[str, float]]:
        return [(f"m{n}", 1000.0 - n) for n in range(limit or MANY)]

    def records(self, mids: Iterable[str]) -> Iterator[MessageRecord]:
        self.reads += 1
        if self.reads > 1:
            self.is_stuck.set()
            assert self.go_on.wait(PATIENCE)
        return (MessageRecord.from_hash({"mid": mid, "id": mid, "task": "t"}, State.NDLV) for mid in mids)


def test_a_page_shows_what_the_metrics_have_read_so_far() -> None:
    """Whoever begins to read, nobody waits for the end to see the newest, and nothing is read twice."""
    ledger: Any = Ledger()
    kept = Kept(ledger, State.NDLV)
    shown: list[tuple[int, bool]] = []
    with ThreadPoolExecutor() as threads:
        metrics = threads.submit(kept.refresh)
        assert ledger.is_stuck.wait(PATIENCE)

        def show(view: View) -> None:
            shown.append((len(view.records), view.unread))
            ledger.go_on.set()

        page = threads.submit(kept.refresh, show)
        assert len(metrics.result(PATIENCE).records) == len(page.result(PATIENCE).records) == MANY
    assert shown[0] == (200, True) and shown[-1] == (MANY, False)
    assert ledger.reads == 2
