"""A keeper beside each fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from celery_poison.testing import RedisServer
from tests.apps.harness import Fleet
from tests.quarantine.keeping import Keeper


@pytest.fixture
def keeper(fleet: Fleet) -> Iterator[Keeper]:
    keeper = Keeper(fleet.app)
    keeper.sign()
    yield keeper
    keeper.close()


@pytest.fixture
def new_server() -> Iterator[Callable[..., RedisServer]]:
    """A function that starts a Redis of the test's own, to be filled, cut off or killed."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(RedisServer(options=options))
