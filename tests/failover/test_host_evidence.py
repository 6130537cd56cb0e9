"""What a dead worker's last heartbeat can say of its death, and what it must not claim to know (NEW-2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from celery_poison.causes import Evidence
from celery_poison.failover.monitor import last_heard
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.fleet import Silence
from celery_poison.worker.heartbeat import HostEvidence, Shutdown

WORKER = "w1@host/0a1b"


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with redis.Redis.from_url(redis_url) as client:
        yield Ledger(client, Keys("ns"))


def _complain(error: Exception) -> None:
    raise error


@pytest.fixture
def dies(ledger: Ledger) -> Callable[..., Evidence]:
    """Let a worker of this process beat once, with changed evidence, and say what is known of its death."""

    def beat_and_die(how: Silence = Silence.SILENT, **changed: Any) -> Evidence:
        shutdown = Shutdown()
        if "asked" in changed:
            shutdown.ask(changed.pop("asked"))
        evidence = json.loads(HostEvidence(shutdown, _complain).encode())
        ledger.beat(WORKER, {"vitals": json.dumps(evidence | changed)}, first=True)
        return last_heard(ledger, WORKER, how)

    return beat_and_die


def test_NEW_2_memory_near_the_limit_is_told_and_is_no_verdict(dies: Callable[..., Evidence]) -> None:
    near = dies(used_kb=950, limit_kb=1000, limit_of="group")
    assert (near.used_kb, near.limit_kb, near.near_limit, near.cause) == (950, 1000, True, "unknown")
    assert dies(used_kb=800, limit_kb=1000).near_limit is False
    assert dies(used_kb=800, limit_kb=0).near_limit is None, "nobody knows the limit"


def test_NEW_2_a_worker_tells_the_memory_of_its_group_or_machine() -> None:
    told = json.loads(HostEvidence(Shutdown(), _complain).encode())
    assert 0 < told["used_kb"] < told["limit_kb"]
    assert told["limit_of"] in ("group", "machine")
    assert "asked" not in told


def test_NEW_2_another_versions_heartbeat_is_no_evidence_but_how_it_was_noticed(ledger: Ledger) -> None:
    for vitals in ("", "{", "[]", "7", '{"used_kb": 1}', '{"limit_kb": "x"}'):
        ledger.beat(WORKER, {"vitals": vitals}, first=True)
        told = last_heard(ledger, WORKER, Silence.GONE)
        assert told.heard_ms is not None
        assert told == Evidence(noticed="gone", heard_ms=told.heard_ms)
    ledger.beat("old@host/1", {"pid": 1}, first=True)
    assert last_heard(ledger, "old@host/1", Silence.GONE).noticed == "gone"


def test_NEW_2_the_heartbeat_of_the_version_before_is_read(ledger: Ledger) -> None:
    before = {"used_kb": 950, "limit_kb": 1000, "limit_of": "group", "worker_kb": 5, "peaks_kb": {"7": 5}}
    more = {
        "kills": 0,
        "events": "/x",
        "counter": "c",
        "place": "p",
        "began": 1,
        "asked": "SIGTERM",
        "asked_ms": 9,
    }
    ledger.beat(WORKER, {"vitals": json.dumps(before | more)}, first=True)
    told = last_heard(ledger, WORKER, Silence.GONE)
    assert (told.near_limit, told.asked) == (True, "SIGTERM")


def test_NEW_2_it_is_known_since_when_it_had_been_asked(dies: Callable[..., Evidence]) -> None:
    assert dies().asked_ms is None
    seen = dies(asked="SIGTERM", asked_ms=7000)
    assert seen.asked_ms is not None
    assert seen.asked_ms >= 7000
    assert "asked to leave by SIGTERM 7." in seen.sentence()
    assert "by whom is not known" in seen.sentence()
