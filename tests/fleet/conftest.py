"""Fleets for failover: heartbeats every half second, death by silence after two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import entry_points as _entry_points
from tests.fleet.crew import Watched
from tests.fleet.deathbed import SETTINGS, Deathbed

#: Declares the `celery poison` command.
entry_points = _entry_points

INTERVALS = {"poison_heartbeat_interval": 0.5, "poison_activation_interval": 2.0}


@pytest.fixture
def new_crew(assemble: Callable[..., Watched]) -> Callable[..., Watched]:
    return lambda broker_url, **settings: assemble(Watched, broker_url, **(INTERVALS | settings))


@pytest.fixture
def crew(new_crew: Callable[..., Watched], broker_url: str) -> Watched:
    return new_crew(broker_url)


@pytest.fixture
def deathbed(new_fleet: Callable[..., Any], new_redis_url: Callable[[], str]) -> Deathbed:
    """A fresh database, in which a worker may lay itself down."""
    url = new_redis_url()
    fleet = new_fleet(url, **SETTINGS)
    return Deathbed(fleet.environ() | {"POISON_REDIS_URL": url})
