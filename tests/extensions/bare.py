"""A fleet in which extensions were left out."""

from __future__ import annotations

from collections.abc import Iterable

from tests.apps.factory import EXTENSIONS
from tests.apps.harness import Fleet


def fleet_with(names: Iterable[str]) -> type[Fleet]:
    """Return a kind of fleet whose workers know these extensions only."""
    kept = " ".join(names)

    class BareFleet(Fleet):
        def environ(self) -> dict[str, str]:
            return super().environ() | {EXTENSIONS: kept}

    return BareFleet
