"""An app whose tasks are published through the outbox, and a relay that a test turns by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.producer.kit import Shop


@pytest.fixture
def new_shop(new_redis_url: Callable[[], str]) -> Iterator[Callable[..., Shop]]:
    """A function that makes a shop from a broker's URL (default: the ledger's own database) and settings."""
    with ExitStack() as shops:

        def build(broker_url: str = "", **settings: Any) -> Shop:
            ledger_url = new_redis_url()
            shop = Shop(broker_url or ledger_url, ledger_url, **settings)
            shops.callback(shop.close)
            return shop

        yield build


@pytest.fixture
def shop(new_shop: Callable[..., Shop], broker_url: str) -> Shop:
    """A shop whose broker is in the ledger's own Redis database, unless a test asks for another."""
    return new_shop("" if broker_url.startswith("redis://") else broker_url)
