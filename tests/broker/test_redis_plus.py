"""celery-redis-plus, a transport of its own for Redis, which says of each delivery whether it came before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.rest
def test_SAP_3_NEW_30_on_celery_redis_plus_a_poison_that_kills_its_worker_is_quarantined(
    new_redis_url: Callable[[], str], new_fleet: Callable[..., Any]
) -> None:
    # In an environment of its own: it wants Python 3.13 and a redis-py before 8.
    pytest.importorskip("celery_redis_plus", reason="celery-redis-plus is not installed")
    fleet = new_fleet(
        new_redis_url(),
        broker_transport="celery_redis_plus.transport:Transport",
        broker_transport_options={"visibility_timeout": 5},
        poison_redis_url=new_redis_url(),
    )
    with fleet.app.connection_for_write() as connection:
        assert type(connection.transport).__module__ == "celery_redis_plus.transport"
    poison = fleet.send("kill_group")
    innocents = [fleet.send("healthy", n) for n in range(4)]
    with fleet.supervise(give_up_after=4) as workers:
        fleet.await_that(lambda: fleet.quarantine.list() or workers.gave_up, "the poison is quarantined")
        assert len(workers.deaths) == 1, "the second death was that of a cell"
        (kept,) = fleet.quarantine.list()
        assert (kept.id, kept.crashes) == (poison.id, 2)
        fleet.await_that(lambda: all(each.state == "SUCCESS" for each in innocents), "the innocents are done")
