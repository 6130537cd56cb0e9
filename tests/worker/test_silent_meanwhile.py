"""What waits in a pool for its turn while its worker is taken for dead (EMS-8)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.keys import Keys
from celery_poison.testing import RedisServer
from celery_poison.worker.child import _is_lost
from celery_poison.worker.lease import Lease


def test_EMS_8_a_run_that_waited_does_not_begin_though_Redis_is_away_when_its_worker_has_a_new_name() -> None:
    with RedisServer() as server:
        ledger = Ledger(open_redis(server.url()), Keys("poison"))
    lease = Lease(0.0)
    ticket: Any = SimpleNamespace(token="b.1")
    later: Any = SimpleNamespace(token="br1.1")
    recorder = SimpleNamespace(worker_of=lambda token: "w1@host/b")
    serving: Any = SimpleNamespace(observes=False, lease=lease, ledger=ledger, recorder=recorder)
    assert lease.is_doubtful(ticket.token)
    assert not _is_lost(serving, ticket), "nobody knows: it runs"
    lease.rejoined()
    assert _is_lost(serving, ticket), "another worker has its message"
    assert not _is_lost(serving, later)
