"""A publisher cannot fill the ledger's Redis by itself, and a full one can be emptied (NEW-5, TP1-8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.exceptions import OutOfMemoryError

from celery_poison.desk.survey import overview
from celery_poison.testing import RedisServer
from tests import PATIENCE
from tests.worker.conftest import Crew

MIB = 1 << 20


@pytest.mark.parametrize("names", [50, pytest.param(12_000, marks=pytest.mark.matrix)])
def test_NEW_5_a_flood_of_what_never_reaches_a_task_leaves_room_for_honest_tasks(
    new_crew: Callable[..., Crew], new_server: Callable[..., RedisServer], redis_url: str, names: int
) -> None:
    server = new_server(maxmemory=60 * MIB)
    ledger = server.client()
    crew = new_crew(redis_url, worker_prefetch_multiplier=20)
    crew.ledger_url = server.url()
    crew.quarantine.pause_task("fleet.healthy", force=True)
    for number in range(6):
        crew.app.send_task("fleet.nowhere", ("x" * 5 * MIB,), task_id=f"large-{number}")
        crew.send("healthy", "x" * 5 * MIB)
    for number in range(names):
        crew.app.send_task(f"fleet.nowhere{number}", task_id=f"name-{number}")
    with crew.worker(pool="solo") as worker:
        honest = crew.send("counted", 7)
        honest.get(timeout=PATIENCE)
        crew.await_that(lambda: crew.log_text().count("stay with the broker"), "parked messages have a bound")
        assert worker.is_alive() and crew.log_text().count("is not kept, quarantine is full") >= 4
        seen = overview(crew.app)
        assert 10 * MIB < seen.memory["unprocessable"] <= 15 * MIB and seen.memory["parked"] <= 15 * MIB
        assert seen.memory["used"] < 50 * MIB and not (seen.unguarded or seen.ledger_errors)
        assert "silent" not in " ".join(seen.faults)
    for size in (MIB, 1024, 1):
        with pytest.raises(OutOfMemoryError):
            for number in range(100_000):
                ledger.set(f"somebody-else-{size}-{number}", b"x" * size)
    full = overview(crew.app)
    assert any("Redis is" in fault and "full" in fault for fault in full.faults)
    ids = [record.id for record in crew.quarantine.list() if record.payload_bytes > MIB]
    assert [outcome.done for outcome in crew.quarantine.fail(ids[:1])] == [True]
    assert ids[1:] and all(outcome.done for outcome in crew.quarantine.discard(ids[1:]))
    assert all(outcome.done for outcome in crew.quarantine.purge(ids))
    ledger.set("small", b"")  # there is room again
    assert overview(crew.app).memory["unprocessable"] < 6 * MIB
