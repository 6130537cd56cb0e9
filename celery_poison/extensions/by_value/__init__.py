"""Holds by value (NEW-27): messages whose arguments fall under a person's conditions do not begin.

``conditions`` reads and compares, ``value_holds`` keeps holds in the ledger, ``catching`` obeys in a worker.
``desk`` adds and lifts; ``proposing`` finds the value that convicted messages share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celery_poison.basics.parts import Hold, Panel
from celery_poison.extension import Extension
from celery_poison.ledger import Ledger


class ByValue(Extension):
    """Imports what it needs when it is needed: most apps only publish."""

    def holds(self, site: Any) -> Iterable[Hold]:
        if site.settings.observe_only:
            return []
        from celery_poison.extensions.by_value.catching import Catching

        return [Catching(site)]

    def still_awaited(self, ledger: Ledger, awaited: Mapping[str, str]) -> Iterable[str]:
        from celery_poison.extensions.by_value.value_holds import ValueHolds

        holds = ValueHolds(ledger)
        numbers = {mid: number for mid, key in awaited.items() if (number := holds.number_in(key))}
        if not numbers:
            return []
        those, now = holds.all()
        in_force = {hold.number for hold in those if not hold.is_over(now)}
        return [mid for mid, number in numbers.items() if number in in_force]

    def acts(self, store: Any) -> Iterable[object]:
        from celery_poison.extensions.by_value.desk import ValueHoldDesk

        return [ValueHoldDesk(store)]

    def panel(self, ledger: Ledger) -> Iterable[Panel]:
        from celery_poison.extensions.by_value.panels import panels

        return panels(self.host.app, ledger)


#: Keys of its own in the ledger -> what names one of several, as docs/keys.md has it.
KEYS = {"value_holds": "", "value_looks": ""}
EXTENSION = ByValue
