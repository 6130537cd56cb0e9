"""The tests of celery_poison."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Seconds that a test waits for what must come before it fails: a machine may have much else to do.
PATIENCE = 120.0


def sampled(always: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """Return values to parametrize by: some run always, the others only with ``tox -e matrix``."""
    import pytest  # here: every worker of these tests imports this package, and would load all of pytest

    rows = [value if isinstance(value, tuple) else (value,) for value in others]
    return [*always, *(pytest.param(*row, marks=pytest.mark.matrix) for row in rows)]
