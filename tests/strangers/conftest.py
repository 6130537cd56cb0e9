"""A fleet of which a plain service is part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.strangers.ids import Ids


@pytest.fixture
def ids(assemble: Callable[..., Any], broker_url: str) -> Ids:
    fleet: Ids = partial(assemble, Ids)(broker_url)
    return fleet
