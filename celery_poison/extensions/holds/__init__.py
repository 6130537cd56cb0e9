"""Holds (WAS-6, WAS-7): queues and tasks that a person pauses, and queues that a worker suspends by itself.

``desk`` pauses and resumes, ``pauses`` keeps that in the ledger. ``pausing`` obeys in a worker, by the rules
of ``suspension``. ``unconsumed`` is what status says, and ``verbs`` are of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from celery_poison.basics.parts import Hold, Panel
from celery_poison.extension import Extension
from celery_poison.ledger import Ledger


class Holds(Extension):
    """Imports what it needs when it is needed: most apps only publish."""

    def holds(self, site: Any) -> Iterable[Hold]:
        if site.settings.observe_only:
            return []
        from celery_poison.extensions.holds.pausing import Pausing

        return [Pausing(site)]

    def keeps_waiting(self, ledger: Ledger) -> Callable[[str, str], bool]:
        from celery_poison.extensions.holds.pauses import Paused

        paused = ledger.companion(self, lambda: Paused(ledger))
        paused.refresh()
        return paused.stops

    def blockade(self, ledger: Ledger, queue: str, begins: bool, actor: str, note: str) -> None:
        from celery_poison.extensions.holds.desk import begin_with_blockade, end_with_blockade

        if begins:
            begin_with_blockade(ledger, queue, actor, note)
        else:
            end_with_blockade(ledger, queue, actor)

    def acts(self, store: Any) -> Iterable[object]:
        from celery_poison.extensions.holds.desk import HoldDesk

        return [HoldDesk(store)]

    def panel(self, ledger: Ledger) -> Iterable[Panel]:
        from celery_poison.extensions.holds.pauses import holding
        from celery_poison.extensions.holds.unconsumed import find_unconsumed, resume_of

        pauses = holding(ledger)
        yield Panel(
            "paused",
            pauses,
            as_json=[asdict(pause) for pause in pauses],
            line="; ".join(pause.line for pause in pauses),
        )
        unconsumed, unknown = find_unconsumed(self.host, ledger, pauses)
        yield Panel(
            "held",
            unconsumed,
            as_json=[asdict(each) for each in unconsumed],
            decisions=[each.story for each in unconsumed],
            typed=[resume_of(each.queue) for each in unconsumed],
            warnings=unknown,
        )


EXTENSION = Holds
