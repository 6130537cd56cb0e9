"""A flag lives for as long as its message, however long the second death takes (SAP-5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery_poison.plugin import plugin_of
from celery_poison.testing import wait_until
from tests.fleet.crew import Watched
from tests.fleet.standalone import MonitorProcess


def _let_all_expire(crew: Watched) -> set[bytes]:
    """Remove from the ledger what Redis would have removed by itself, some time."""
    client: Any = plugin_of(crew.app).open_ledger().client
    expiring = {key for key in client.scan_iter("*") if client.ttl(key) != -1}
    if expiring:
        client.delete(*expiring)
    return expiring


def test_SAP_5_a_candidate_stays_one_though_all_that_can_expire_has_expired(
    crew: Watched, entry_points: Path
) -> None:
    poison = crew.send("kill_group")
    with MonitorProcess(crew, entry_points) as monitor:
        monitor.await_active()
        with crew.worker() as first:
            first.wait()
        wait_until(lambda: monitor.told("failover_finished"), what=monitor.log_text)
    assert _let_all_expire(crew), "there is something that expires, else this shows nothing"
    (flagged,) = crew.quarantine.list(candidates=True)
    assert (flagged.id, flagged.crashes, flagged.candidate) == (poison.id, 1, True)

    with crew.worker("w2") as second:
        crew.await_that(crew.quarantine.list, "convicted by its second death")
        assert second.is_alive(), "it was remembered, and tried where it could harm nobody"
    (kept,) = crew.quarantine.list()
    assert (kept.id, kept.crashes, kept.strikes) == (poison.id, 2, 2)
