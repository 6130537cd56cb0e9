"""Brokers of one's own for workers that live in the test's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.broker.kit import Site
from tests.broker.sqs import NEEDED, SqsServer


@pytest.fixture
def new_site(new_redis_url: Callable[[], str]) -> Iterator[Callable[..., Site]]:
    """A function that makes a broker from transport options."""
    sites: list[Site] = []

    def build(url: str = "", **options: Any) -> Site:
        sites.append(Site(url or new_redis_url(), options))
        return sites[-1]

    yield build
    for site in sites:
        site.close()


@pytest.fixture
def site(new_site: Callable[..., Site]) -> Site:
    return new_site()


@pytest.fixture(scope="module")
def sqs() -> Iterator[SqsServer]:
    for module in NEEDED:
        pytest.importorskip(module, reason="moto's SQS is not installed")
    with SqsServer() as server:
        yield server
