"""What a dead worker's last heartbeat can say of its death, and what it must not claim to know (NEW-2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from celery_poison.causes import Evidence
from celery_poison.cells.trial import PoolFacts
from celery_poison.desk.evidence import sentence_of
from celery_poison.fleet.last_heard import last_heard
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.fleet import Silence
from celery_poison.model import Start
from celery_poison.worker.announce import Complaints
from celery_poison.worker.heartbeat import Shutdown, WorkerFacts
from celery_poison.worker.lease import Incarnation
from celery_poison.worker.threads import EventLoop
from tests.sites import site

WORKER = "w1@host/0a1b"


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with redis.Redis.from_url(redis_url) as client:
        yield Ledger(client, Keys("ns"))


def _vitals(shutdown: Shutdown) -> dict[str, Any]:
    """Return what a heartbeat of this process would tell."""
    app = Celery(broker="redis://nowhere", set_as_current=False)
    pool = PoolFacts("solo", 1, True, None, None)
    others: Any = SimpleNamespace(has_reconnected=False, missing=0, room=1, lacks="")
    payload = WorkerFacts(
        site=site(app=app, me=Incarnation("w1@host"), loop=EventLoop(), complain=Complaints()),
        pool=pool,
        shutdown=shutdown,
        holds=(),
        pulse=SimpleNamespace(portrait=SimpleNamespace(last=str), stack=(), condemned_at=None),  # type: ignore[arg-type]
        **dict.fromkeys(("cells", "rejoin", "deferred_cleanup"), others),
    )
    told: dict[str, Any] = json.loads(str(payload.now()["vitals"]))
    return told


@pytest.fixture
def dies(ledger: Ledger) -> Callable[..., Evidence]:
    """Let a worker of this process beat once, with changed evidence, and say what is known of its death."""

    def beat_and_die(how: Silence = Silence.SILENT, **changed: Any) -> Evidence:
        shutdown = Shutdown()
        if "asked" in changed:
            shutdown.ask(changed.pop("asked"))
        evidence = _vitals(shutdown)
        ledger.fleet.beat(WORKER, {"vitals": json.dumps(evidence | changed)}, first=True)
        return last_heard(ledger, WORKER, how)

    return beat_and_die


def test_NEW_2_memory_near_the_limit_is_told_and_is_no_verdict(dies: Callable[..., Evidence]) -> None:
    near = dies(used_kb=950, limit_kb=1000, limit_of="group")
    assert (near.used_kb, near.limit_kb, near.near_limit, near.cause) == (950, 1000, True, "unknown")
    assert dies(used_kb=800, limit_kb=1000).near_limit is False
    assert dies(used_kb=800, limit_kb=0).near_limit is None, "nobody knows the limit"


def test_NEW_2_a_worker_tells_the_memory_of_its_group_or_machine() -> None:
    told = _vitals(Shutdown())
    assert 0 < told["used_kb"] < told["limit_kb"]
    assert told["limit_of"] in ("group", "machine")
    assert "asked" not in told


def test_NEW_2_another_versions_heartbeat_is_no_evidence_but_how_it_was_noticed(ledger: Ledger) -> None:
    for vitals in ("", "{", "[]", "7", '{"used_kb": 1}', '{"limit_kb": "x"}'):
        ledger.fleet.beat(WORKER, {"vitals": vitals}, first=True)
        told = last_heard(ledger, WORKER, Silence.GONE)
        assert told.heard_ms is not None
        interval = {"after_ms": told.after_ms, "by_ms": told.by_ms}
        assert told == Evidence(noticed="gone", heard_ms=told.heard_ms, **interval)
    ledger.fleet.beat("old@host/1", {"pid": 1}, first=True)
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
    ledger.fleet.beat(WORKER, {"vitals": json.dumps(before | more)}, first=True)
    told = last_heard(ledger, WORKER, Silence.GONE)
    assert (told.near_limit, told.asked) == (True, "SIGTERM")


def test_NEW_2_it_is_known_since_when_it_had_been_asked(dies: Callable[..., Evidence]) -> None:
    assert dies().asked_ms is None
    seen = dies(asked="SIGTERM", asked_ms=7000)
    assert seen.asked_ms is not None
    assert seen.asked_ms >= 7000
    assert "asked to leave by SIGTERM, at most 7." in sentence_of(seen)
    assert "the sender is not known" in sentence_of(seen)


# --- when it died ------------------------------------------------------------------------------------


def _found_gone(ledger: Ledger, beat: int, since: int) -> None:
    """Put a worker on record that beat last at one moment, and was first seen to be gone at another."""
    server: Any = ledger.client.info("server")
    ledger.fleet.beat(WORKER, {"node": "w1@host"}, first=True, run_id=server["run_id"])
    ledger.client.zadd(ledger.keys.leases, {WORKER: beat})
    ledger.client.hset(ledger.keys.gone, WORKER, since)


def test_a_worker_that_nobody_watched_died_between_its_last_beat_and_the_first_look(ledger: Ledger) -> None:
    now = ledger.read.now_ms()
    beat, since = now - 36_000, now - 2000
    _found_gone(ledger, beat, since)
    told = last_heard(ledger, WORKER, Silence.GONE)
    assert (told.after_ms, told.by_ms) == (beat, since)
    assert sentence_of(told).startswith("That was between 2")
    led = ledger.fleet.lead("successor", 60_000)
    assert led is not None
    dead = ledger.fleet.declare_dead(
        WORKER, "i1", Silence.GONE, 4000, led[0], evidence=told.encode(), seen_ms=told.after_ms or 0
    )
    assert dead is not None
    incident = ledger.read.incident("i1")
    assert incident is not None and incident.died_at == beat / 1000
    ledger.fleet.close_incident(WORKER, "i1", flagged=0, put_back=0, returned={}, fence=led[0])
    assert ledger.read.counts()["recovered:60"] == 1, "nor is it swallowed where recoveries are counted"


def test_a_worker_that_was_watched_died_after_the_last_look_that_saw_it(ledger: Ledger) -> None:
    now = ledger.read.now_ms()
    _found_gone(ledger, now - 5000, now - 2000)
    told = last_heard(ledger, WORKER, Silence.GONE, [now - 2500, now - 2250, now - 2000, now - 1750])
    assert (told.after_ms, told.by_ms) == (now - 2250, now - 2000)
    assert sentence_of(told).startswith("That was at 2")


def test_what_ran_in_a_dead_worker_ran_up_to_the_last_sign_of_life_and_not_to_the_verdict(
    ledger: Ledger,
) -> None:
    now = ledger.read.now_ms()
    start = Start.of("0a1b.1", WORKER, "id", "t", at_ms=now - 40_000)
    ledger.client.hset(ledger.keys.running, "m", start.encode())
    led = ledger.fleet.lead("successor", 60_000)
    assert led is not None
    ledger.messages.crash(
        "m", start, cause="worker_lost", shared=False, fence=led[0], died_at=(now - 36_000) / 1000
    )
    (entry,) = [entry for entry in ledger.read.journal() if entry["event"] == "crashed"]
    assert entry["runtime_ms"] == "4000"
    record = ledger.read.lineage("id")
    assert record is not None and record.runtime_ms == 4000
