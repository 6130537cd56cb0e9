"""What an observer can say of a death, and what it must not claim to know (NEW-2)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_poison import machine
from celery_poison.evidence import Evidence
from celery_poison.failover.witness import testify as say
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.fleet import Silence
from celery_poison.testing import wait_until
from celery_poison.worker.presence.vitals import Vitals

WORKER = "w1@host/0a1b"


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with redis.Redis.from_url(redis_url) as client:
        yield Ledger(client, Keys("ns"))


@pytest.fixture
def main_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def _complain(error: Exception) -> None:
    raise error


@pytest.fixture
def dies(ledger: Ledger) -> Callable[..., Evidence]:
    """Let a worker of this process beat once, with changed vitals, and say what is known of its death."""

    def beat_and_die(how: Silence = Silence.SILENT, pid: int = 0, **changed: Any) -> Evidence:
        vitals = Vitals(_complain)
        if "asked" in changed:
            vitals.asked_to_leave(changed.pop("asked"))
        told = json.dumps(json.loads(vitals.tell()) | changed)
        ledger.beat(WORKER, {"vitals": told, "pid": pid or os.getpid()}, first=True)
        return Evidence.decode(say(ledger, WORKER, how).evidence)

    return beat_and_die


def test_NEW_2_a_process_that_cannot_be_seen_is_not_claimed_to_be_gone(dies: Callable[..., Evidence]) -> None:
    assert dies().process == "lives"
    assert dies(place="elsewhere").process == ""
    assert dies(began=1).process == "gone", "its number has been given to another process"


def test_NEW_2_a_stopped_process_is_told_from_a_dead_one(
    dies: Callable[..., Evidence], main_process: subprocess.Popen[bytes]
) -> None:
    pid = main_process.pid
    began = machine.begun(pid)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: machine.became_of(pid, began) is machine.Process.STOPPED, what="it is stopped")
    seen = dies(Silence.FROZEN, pid, began=began)
    assert seen.process == "stopped"
    assert "stopped by a signal" in seen.sentence()
    assert "not known" not in seen.sentence()
    main_process.kill()
    wait_until(lambda: dies(Silence.FROZEN, pid, began=began).process == "gone", what="it is gone")


def test_NEW_2_the_kernels_kills_are_believed_where_they_are_seen_and_only_for_what_fits(
    dies: Callable[..., Evidence], tmp_path: Path
) -> None:
    counter = json.loads(Vitals(_complain).tell())
    before = {"kills": counter["kills"] - 1, "limit_kb": 1000}
    assert dies(**before, limit_of="group", worker_kb=10).oom is True
    assert dies(limit_of="group").oom is False
    assert dies(**before, limit_of="machine", worker_kb=10).oom is False, "somebody else's"
    assert dies(**before, limit_of="machine", worker_kb=500).oom is True
    assert dies(**before, counter="another machine's").oom is None
    file = tmp_path / "passwd"
    file.write_text("oom_kill 7")
    assert dies(**before, events=str(file), counter=machine.counter(str(file))).oom is None, "a foreign file"


def test_NEW_2_another_versions_heartbeat_is_no_evidence_but_how_it_was_noticed(ledger: Ledger) -> None:
    for vitals in ("", "{", "[]", "7", '{"used_kb": 1}', '{"limit_kb": "x"}'):
        ledger.beat(WORKER, {"vitals": vitals}, first=True)
        told = Evidence.decode(say(ledger, WORKER, Silence.GONE).evidence)
        assert told.heard_ms is not None
        assert told == Evidence(noticed="gone", heard_ms=told.heard_ms)
    ledger.beat("old@host/1", {"pid": 1}, first=True)
    assert Evidence.decode(say(ledger, "old@host/1", Silence.GONE).evidence).noticed == "gone"


def test_NEW_2_it_is_known_since_when_it_had_been_asked(dies: Callable[..., Evidence]) -> None:
    assert dies().asked_ms is None
    seen = dies(asked="SIGTERM", asked_ms=7000)
    assert seen.asked_ms is not None
    assert seen.asked_ms >= 7000
    assert "asked to leave by SIGTERM 7." in seen.sentence()
    assert "by whom is not known" in seen.sentence() or "lives" in seen.sentence()


def test_NEW_2_the_memory_of_processes_that_a_task_started_is_the_workers_too(
    main_process: subprocess.Popen[bytes],
) -> None:
    told = json.loads(Vitals(_complain).tell())
    assert {str(os.getpid()), str(main_process.pid)} <= set(told["peaks_kb"])
    assert told["worker_kb"] > machine.memory(main_process.pid)[0] > 0


def test_NEW_2_memory_that_comes_near_the_limit_is_told_at_once_and_once(monkeypatch: Any) -> None:
    vitals = Vitals(_complain)
    limit = json.loads(vitals.tell())["limit_kb"] * 1024
    used = iter([limit // 2, limit, limit, limit, limit // 2, limit // 2, limit])
    monkeypatch.setattr(vitals._group, "used", lambda: next(used))
    assert not vitals.is_news
    assert vitals.is_news
    vitals.tell()
    assert not vitals.is_news, "it was told"
    vitals.tell()
    vitals.tell()
    assert not vitals.is_news
    assert vitals.is_news, "it had gone down meanwhile"
