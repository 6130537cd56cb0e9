"""Whole fleets on a Redis by TLS or by a Unix socket: all that is done elsewhere by a plain connection."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from celery_poison.cli.doctor import examine
from celery_poison.testing import wait_until
from tests import PATIENCE, sampled
from tests.apps.harness import ROOT, Fleet
from tests.harness.servers import MASTER_NAME
from tests.tls.server import SentinelOfTls, TlsRedisServer

HEALTHY = 20


def celery(fleet: Fleet, *arguments: str) -> str:
    command = [sys.executable, "-m", "celery", "-A", fleet.module, "poison", *arguments]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **fleet.environ()}
    return subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout


def assert_that_a_poison_is_caught_and_released(fleet: Fleet) -> None:
    poison = fleet.send("kill_group")
    with fleet.supervise(2) as workers:
        healthy = [fleet.send("healthy", n) for n in range(HEALTHY)]
        assert [result.get(timeout=PATIENCE) for result in healthy] == list(range(HEALTHY))
        fleet.await_that(fleet.quarantine.list, "the poison is in quarantine")
        (kept,) = fleet.quarantine.list()
        assert (kept.id, kept.cause, kept.strikes) == (poison.id, "signal:9", 2)
        assert len(workers.deaths) == 1, "it died in a cell the second time"
        fleet.await_that(lambda: not fleet.quarantine.list(candidates=True), "everybody else is cleared")
        fleet.marks.repair()
        assert celery(fleet, "release", kept.mid, "--yes").startswith("released")
        assert poison.get(timeout=PATIENCE) == "repaired"
    log = fleet.log_text()
    assert "runs unguarded" not in log and "not reachable" not in log, log


@pytest.mark.parametrize("broker_url", sampled(["tls"], ["unix"]), indirect=True)
def test_NEW_1_SAP_7_a_poison_is_caught_and_released_as_elsewhere(
    new_fleet: Callable[..., Fleet], broker_url: str
) -> None:
    fleet = new_fleet(broker_url, backend_url=broker_url)
    assert_that_a_poison_is_caught_and_released(fleet)
    doctor = celery(fleet, "doctor")
    assert "FAIL" not in doctor
    assert "ca.pem" not in doctor
    assert ("certificate is verified" in doctor) == broker_url.startswith("rediss:")


def test_a_certificate_that_cannot_be_verified_is_told_with_the_cure(
    new_fleet: Callable[..., Fleet], tls_server: TlsRedisServer, redis_url: str
) -> None:
    fleet = new_fleet(redis_url, poison_redis_url=tls_server.bare_url())
    (found,) = [finding for finding in examine(fleet.app) if finding.level == "FAIL"]
    assert found.check == "reachable"
    assert "ssl_ca_certs" in found.cure


@pytest.mark.matrix
def test_celerys_own_settings_of_tls_are_those_of_the_ledger(
    new_fleet: Callable[..., Fleet], tls_server: TlsRedisServer, tls_url: str
) -> None:
    database = int(tls_url.partition("?")[0].rpartition("/")[2])
    options = {"ssl_cert_reqs": "required", "ssl_ca_certs": str(tls_server.authority.ca)}
    bare = tls_server.bare_url(database)
    fleet = new_fleet(bare, backend_url=bare, broker_use_ssl=options, redis_backend_use_ssl=options)
    assert_that_a_poison_is_caught_and_released(fleet)


@pytest.mark.parametrize("pool", sampled(["threads"], ["gevent"]))
def test_EMS_10_many_starts_that_wait_for_their_answers_at_once_are_all_recorded(
    new_fleet: Callable[..., Fleet], tls_server: TlsRedisServer, redis_url: str, pool: str
) -> None:
    options = {"appendonly": "yes", "appendfsync": "always"}
    with TlsRedisServer(tls_server.authority, options) as server:
        fleet = new_fleet(redis_url, poison_redis_url=server.url(), poison_durability="sync")
        with fleet.worker(pool=pool, concurrency=16):
            results = [fleet.send("healthy", n, 0.001) for n in range(300)]
            assert [result.get(timeout=PATIENCE) for result in results] == list(range(300))
            fleet.await_that(lambda: not [*fleet.quarantine.queries.running()], "all have ended")
    assert set(fleet.marks.count("healthy", "start").values()) == {1}
    assert "unguarded" not in fleet.log_text()


@pytest.mark.parametrize("durability", sampled(["sync"], ["process"]))
def test_NEW_8_after_a_stall_of_the_ledger_everything_is_on_record_and_settled(
    new_fleet: Callable[..., Fleet], tls_server: TlsRedisServer, redis_url: str, durability: str
) -> None:
    """By TLS Redis reads one record of a connection at a time: who has sent much is behind all others."""
    options = {"appendonly": "yes", "appendfsync": "always"}
    with TlsRedisServer(tls_server.authority, options) as server:
        fleet = new_fleet(redis_url, poison_redis_url=server.url(), poison_durability=durability)
        with fleet.worker():
            assert fleet.send("healthy", 0).get(timeout=PATIENCE) == 0
            server.pause()
            results = [fleet.send("healthy", n) for n in range(1, 41)]
            assert [result.get(timeout=PATIENCE) for result in results] == list(range(1, 41))
            server.resume()
            fleet.await_that(lambda: not [*fleet.quarantine.queries.running()], "all are settled")
            assert not fleet.events("interrupted", "crashed")


@pytest.mark.matrix
def test_EMS_8_a_master_with_tls_that_a_sentinel_names_is_the_ledger_too(
    new_fleet: Callable[..., Fleet], tls_server: TlsRedisServer, tls_url: str, redis_url: str
) -> None:
    database = tls_url.partition("?")[0].rpartition("/")[2]
    with SentinelOfTls(tls_server) as sentinel:
        wait_until(lambda: sentinel.has_master(tls_server.port), what="the Sentinel knows its master")
        fleet = new_fleet(
            f"sentinel://127.0.0.1:{sentinel.port}/{database}",
            backend_url=redis_url,
            broker_transport_options={"master_name": MASTER_NAME},
            broker_use_ssl={"ssl_cert_reqs": "required", "ssl_ca_certs": str(tls_server.authority.ca)},
        )
        assert_that_a_poison_is_caught_and_released(fleet)
