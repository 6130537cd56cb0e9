"""A keeper beside each fleet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.apps.harness import Fleet
from tests.quarantine.keeping import Keeper


@pytest.fixture
def keeper(fleet: Fleet) -> Iterator[Keeper]:
    keeper = Keeper(fleet.app)
    keeper.sign()
    yield keeper
    keeper.close()
