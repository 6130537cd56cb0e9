"""The cost of deaths (NEW-28): the run time of runs that were cut off, thrown away and mostly done again.

The scripts that journal such an end add it up in the same step, in one small hash: ``lua/_at_cut_off.lua``
and ``lua/_at_kept.lua``. ``losses`` reads that hash, and says it in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from celery_poison.basics.parts import Panel
from celery_poison.extension import Extension
from celery_poison.ledger import Ledger


class Cost(Extension):
    """Imports what it needs when it is needed: most apps only publish."""

    def panel(self, ledger: Ledger) -> Iterable[Panel]:
        from celery_poison.extensions.cost.losses import read

        losses = read(ledger)
        yield Panel("cost", losses, as_json=losses.as_json(), line=losses.line)

    def incident_notes(self, ledger: Ledger, incidents: Sequence[str]) -> Iterable[tuple[str, str]]:
        from celery_poison.extensions.cost.losses import read

        of_deaths = read(ledger).deaths
        return [(each, of_deaths[each].sentence) for each in incidents if each in of_deaths]


#: Keys of its own in the ledger -> what names one of several, as docs/keys.md has it.
KEYS = {"cost": ""}
EXTENSION = Cost
