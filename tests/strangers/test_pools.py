"""Pools that are not Celery's run guarded tasks as they run others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.apps.harness import Fleet
from tests.strangers.pools_app import build


@dataclass
class Pools(Fleet):
    module = "tests.strangers.pools_app"
    build = staticmethod(build)

    def start(self, name: str, pool: str, **env: str) -> Any:
        custom = {"CELERY_CUSTOM_WORKER_POOL": f"{self.module}:{pool}", **env}
        return self.worker(name, "custom", env=custom)


@pytest.fixture
def pools(assemble: Callable[..., Pools], redis_url: str) -> Pools:
    return partial(assemble, Pools)(redis_url)


def test_a_pool_that_changes_the_tracer_before_it_starts_finds_celery_as_without_us(pools: Pools) -> None:
    imported = {}
    for name, env in (("plain", {"PLAIN": "1"}), ("guarded", {})):
        path = pools.directory / f"{name}.json"
        with pools.start(name, "Awaiting", IMPORTED=str(path), **env) as worker:
            worker.wait_ready()
            assert pools.app.tasks["pools.waits"].delay(1).get(timeout=60) == 1
        imported[name] = json.loads(path.read_text())
    # What we look at before the pool is made imports nothing of Celery.
    assert imported["guarded"] == imported["plain"]


@pytest.mark.parametrize("pool", ["Processes", "Threads", "Awaiting"])
def test_a_poison_is_convicted_in_a_pool_that_is_derived_from_celerys(pools: Pools, pool: str) -> None:
    from celery_poison.testing import Supervisor

    pools.app.tasks["pools.dies"].delay()
    with Supervisor(lambda name: pools.start(name, pool)) as supervisor:
        supervisor.wait_ready()
        pools.await_that(lambda: pools.quarantine.list(), "it is in quarantine")
        (record,) = pools.quarantine.list()
        assert (record.deliveries, record.crashes) == (2, 2)
        assert pools.app.tasks["pools.counts"].delay(3).get(timeout=60) == 3
    # The main process is reached by what runs in it alone.
    assert len(supervisor.deaths) == (0 if pool == "Processes" else 2)
