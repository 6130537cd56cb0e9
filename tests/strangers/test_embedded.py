"""A worker in a thread of another program, as `celery.contrib.testing` starts it, leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_poison.ledger import Keys
from tests import PATIENCE, sampled

ROOT = Path(__file__).resolve().parents[2]
IN_MEMORY = ("memory://", "cache+memory://")
#: Names in the ledger that stand for workers and tasks that are there.
LIVING = ("leases", "presence", "running", "done")


def _run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "C_FORCE_ROOT": "1", **environ}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE
    )


def _embedded(broker: str, backend: str, pool: str, kind: str, times: int = 2) -> dict[str, Any]:
    """What was left after each worker that was started and stopped in one process; what was warned of."""
    done = _run("-m", "tests.strangers.embedded", broker, backend, pool, str(times), kind)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for after in told["left"] if pool == "prefork" else ():
        after["files"].pop("pipe", None)  # of billiard's: now one more, now one less
    return told


def _plain_and_ours(broker: str, backend: str, pool: str, times: int = 2) -> list[dict[str, Any]]:
    with ThreadPoolExecutor() as both:
        return list(
            both.map(lambda kind: _embedded(broker, backend, pool, kind, times), ("plain", "guarded"))
        )


@pytest.mark.parametrize(
    ("broker_url", "pool"),
    sampled(
        [("redis", "threads"), ("redis", "prefork"), ("rabbitmq", "solo")],
        [("redis", "solo"), ("rabbitmq", "threads"), ("rabbitmq", "prefork")],
    ),
    indirect=["broker_url"],
)
def test_a_stopped_worker_leaves_nothing_in_its_process_that_a_plain_one_does_not_leave(
    broker_url: str, new_redis_url: Callable[[], str], pool: str
) -> None:
    plain = _embedded(broker_url, new_redis_url(), pool, "plain")
    ours = _embedded(broker_url, new_redis_url(), pool, "guarded")
    assert ours["left"] == plain["left"]


@pytest.mark.parametrize("pool", sampled(["solo", "prefork"], ["threads"]))
def test_EMS_4_a_stopped_worker_leaves_its_tombstone_in_the_ledger_and_nothing_else(
    redis_url: str, new_redis_url: Callable[[], str], pool: str
) -> None:
    _embedded(redis_url, new_redis_url(), pool, "guarded")
    keys = Keys("poison")
    with redis.Redis.from_url(redis_url) as ledger:
        assert ledger.zcard(keys.buried) == 2
        assert not [name for name in LIVING if ledger.exists(getattr(keys, name))]
        assert not [*ledger.scan_iter(keys.worker("*"))]


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_on_a_broker_in_memory_without_any_Redis_tasks_run_unguarded_after_one_warning(pool: str) -> None:
    plain, ours = _plain_and_ours(*IN_MEMORY, pool)
    assert ours["left"] == plain["left"]
    (warning,) = ours["warnings"]
    assert "unguarded" in warning
    assert "poison_redis_url" in warning


def _fixtures(broker: str, backend: str, *words: str) -> str:
    chosen = ("-p", "celery.contrib.pytest", "-p", "no:cacheprovider", "--noconftest", *words)
    told = _run(
        *("-m", "pytest", "-q", *chosen, "tests/strangers/fixtures.py"),
        BROKER=broker,
        BACKEND=backend,
        KIND="guarded",
    )
    assert told.returncode == 0, told.stdout
    return told.stdout


@pytest.mark.parametrize("where", ["memory", "redis"])
def test_tests_with_the_fixtures_of_Celery_pass(where: str, request: pytest.FixtureRequest) -> None:
    new_redis_url = request.getfixturevalue("new_redis_url") if where == "redis" else None
    broker, backend = (new_redis_url(), new_redis_url()) if new_redis_url else IN_MEMORY
    assert "3 passed" in _fixtures(broker, backend, "-n", "0", "-k", "own or defined")


def test_a_worker_of_the_session_goes_on_beside_those_of_single_tests(
    new_redis_url: Callable[[], str],
) -> None:
    assert "4 passed" in _fixtures(new_redis_url(), new_redis_url(), "-n", "2", "-k", "own or session")


def test_on_a_real_broker_a_program_without_a_ledger_does_not_start_and_says_why() -> None:
    text = (
        "from celery import Celery; from celery_poison import guarded\n"
        "app = Celery('t', broker='amqp://127.0.0.1:1//')\n"
        "@guarded\n@app.task\ndef one(): pass\n"
        "app.worker_main(['worker', '-P', 'solo'])"
    )
    done = _run("-c", text)
    assert done.returncode != 0
    assert "poison_redis_url is not set" in done.stderr
