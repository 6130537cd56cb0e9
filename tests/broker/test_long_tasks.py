"""Real workers whose tasks outlast the visibility timeout, beside one who sweeps all the time (TP1-8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import sampled
from tests.apps.harness import Fleet
from tests.broker.kit import Site

EAGER = {"visibility_timeout": 1, "unacked_restore_throttle": 1, "unacked_restore_interval": 1}


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads", "solo"]))
def test_TP1_8_a_task_longer_than_the_visibility_timeout_is_delivered_once(
    new_fleet: Callable[..., Fleet], new_site: Callable[..., Site], redis_url: str, pool: str
) -> None:
    fleet = new_fleet(redis_url, broker_transport_options=EAGER, worker_prefetch_multiplier=2)
    sweeper = new_site(redis_url, **EAGER)
    plain = sweeper.receiver(boot_id="", queues=("elsewhere",))
    tags: set[str] = set()

    def done(count: int) -> Callable[[], Any]:
        def look() -> bool:
            tags.update(sweeper.entries())
            return len(fleet.marks.count("healthy", "end")) == count

        return look

    with fleet.worker(pool=pool, concurrency=1, defaults=True) as worker:
        worker.wait_ready()
        fleet.send("healthy", 0, 4.0)
        fleet.send("healthy", 1, 0.5)
        plain.drain(done(2))
    assert len(tags) == 2, f"each was delivered once: {tags}\n{fleet.log_text()[-3000:]}"
    assert set(fleet.marks.count("healthy", "start").values()) == {1}
