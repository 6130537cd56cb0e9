"""SQS, which flags nothing as redelivered: a poison that kills its whole worker is stopped there too."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_poison.testing.servers import Server, free_ports


class SqsServer(Server):
    """moto's server, which plays SQS and keeps everything in memory."""

    title = "SQS"

    def __init__(self) -> None:
        super().__init__()
        (self.port,) = free_ports()

    @property
    def url(self) -> str:
        return f"sqs://testing:testing@127.0.0.1:{self.port}//"

    def _launch(self) -> subprocess.Popen[bytes]:
        return self._spawn(sys.executable, "-m", "moto.server", "-p", str(self.port))

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/moto-api/", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture
def sqs() -> Iterator[SqsServer]:
    # In an extra of its own: moto's server brings much for one test.
    for module in ("moto.server", "boto3", "pycurl"):
        pytest.importorskip(module, reason="moto's SQS is not installed")
    with SqsServer() as server:
        yield server


@pytest.mark.rest
def test_SAP_3_NEW_30_on_SQS_a_poison_that_kills_its_worker_is_quarantined_at_its_second_death(
    sqs: SqsServer, new_fleet: Callable[..., Any]
) -> None:
    fleet = new_fleet(
        sqs.url,
        broker_transport_options={
            "region": "us-east-1",
            "is_secure": False,
            "visibility_timeout": 5,
            "polling_interval": 0.3,
            "wait_time_seconds": 1,
        },
        worker_enable_remote_control=False,
    )
    poison = fleet.send("kill_group")
    innocents = [fleet.send("healthy", n) for n in range(4)]
    with fleet.supervise(give_up_after=4) as workers:
        fleet.await_that(lambda: fleet.quarantine.list() or workers.gave_up, "the poison is quarantined")
        assert len(workers.deaths) == 1, "the second death was that of a cell"
        (kept,) = fleet.quarantine.list()
        assert (kept.id, kept.crashes) == (poison.id, 2)
        fleet.await_that(
            lambda: all(innocent.state == "SUCCESS" for innocent in innocents), "the innocents are done"
        )
    assert Counter(entry["event"] for entry in fleet.events("quarantined")) == {"quarantined": 1}
