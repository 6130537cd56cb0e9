"""A Redis that does not answer stops neither Flower nor our pages, which say so and recover."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from celery_poison.flower.async_ledger import ANSWER_TIMEOUT
from celery_poison.testing import RedisServer, wait_until
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN, FlowerServer

#: Pages of Flower's that need no broker.
OTHERS = ("/healthcheck", "/metrics", "/tasks")


def slowest(flower: FlowerServer, seconds: float) -> float:
    """Return the longest answer of Flower's own pages."""
    until, worst = time.monotonic() + seconds, 0.0
    while time.monotonic() < until:
        worst = max(worst, *(flower.get(path).took for path in OTHERS))
        time.sleep(0.02)
    return worst


def test_a_paused_redis_leaves_flower_fast_and_is_told(
    new_fleet: Callable[..., Fleet], serve: Serve, new_server: Callable[..., RedisServer], redis_url: str
) -> None:
    # The broker answers: Flower itself waits for a broker that does not.
    server = new_server()
    fleet = new_fleet(redis_url, poison_redis_url=server.url(0))
    keeper = Keeper(fleet.app)
    keeper.sign()
    mid = keeper.send_and_keep("fleet.kill_child")
    flower = serve(user=ANN, of=fleet)
    assert mid in flower.get("/poison").text
    before = slowest(flower, 1)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        message = flower.get(f"/poison/message/{mid}")
        during = slowest(flower, max(0.5, 5 - (time.monotonic() - began)))
        page = flower.get("/poison")
        refused = flower.post_json("/api/poison/act/discard", {"ids": [mid], "dry_run": True})
    finally:
        os.kill(server.pid, signal.SIGCONT)
    sys.stdout.write(f"slowest page of Flower's: {before * 1000:.1f} ms, paused {during * 1000:.1f} ms\n")
    # Who waited for Redis would have waited at least so long; else it is the machine that is busy.
    assert (during < ANSWER_TIMEOUT, page.took < ANSWER_TIMEOUT) == (True, True), (during, page.took)
    assert mid in page.text  # the last that was known
    assert 'role="alert"' in page.text
    assert "Redis" in page.text
    assert (message.status, refused.status) == (503, 503)
    wait_until(lambda: 'role="alert"' not in flower.get("/poison").text, what="it recovers")
    assert flower.get(f"/poison/message/{mid}").status == 200
    keeper.close()
