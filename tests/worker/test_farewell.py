"""How a worker leaves."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Start
from celery_poison.worker.inflight import FOR_A_COPY, Acknowledged, DeferredCleanup
from celery_poison.worker.life import Life


def _nothing(*_: Any) -> None:
    pass


def test_EMS_4_who_leaves_after_it_was_taken_for_dead_takes_back_what_is_held_against_its_ends(
    redis_url: str,
) -> None:
    with open_redis(redis_url) as client:
        ledger = Ledger(client, Keys("farewell"))
        start = Start.of("boot.1", "w@host/boot", "id", "t", at_ms=1)
        ledger.client.hset(ledger.keys.running, "m", start.encode())
        ledger.messages.crash("m", start, cause="worker_lost", shared=True)  # so says who took it for dead
        cleanup = DeferredCleanup(ledger)
        # Its acknowledgement may have been lost with the connection: a copy may come.
        cleanup.keep([Acknowledged(0.0, "m", start.token, "id", "t")], FOR_A_COPY)
        me = SimpleNamespace(worker="w@host/bootr1", first_worker="w@host/boot", rejoins=1, pid=os.getpid())
        life = Life.__new__(Life)
        life.parts = ()
        life.worker = SimpleNamespace(  # type: ignore[assignment]
            me=me,
            shutdown=SimpleNamespace(is_begun=False, is_over=False),
            outcomes=SimpleNamespace(take_back_all=_nothing),
            books=SimpleNamespace(leave_for_good=lambda: True),
            ledger=ledger,
            deferred_cleanup=cleanup,
            crash_reports=None,
        )
        life.farewell()
        assert not ledger.read.candidate_ids()
        assert not client.exists(ledger.keys.lineage("id"))
