"""A result backend that takes connections and never answers holds up no failover (EMS-3)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from celery_poison.fleet.recovery import Recovered, Recovery
from celery_poison.model import Start
from celery_poison.plugin import plugin_of
from celery_poison.testing import wait_until
from tests.apps.harness import Fleet


@pytest.fixture
def silent_url() -> Iterator[str]:
    """The URL of a Redis that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def test_EMS_3_a_result_backend_that_hangs_holds_up_no_failover(
    new_fleet: Callable[..., Fleet], redis_url: str, silent_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = new_fleet(redis_url, result_backend=silent_url)
    ledger, worker, done = plugin_of(fleet.app).open_ledger(), "w@x/b", list[Recovered]()
    for n in range(5):
        start = Start("R", f"b.{n}", worker, 1, 1, 1, 0, f"id{n}", "fleet.healthy", "celery", 2, 5, 10, 1)
        ledger.messages.claim(f"m{n}", b"", start)
    fence, _ = ledger.fleet.lead("w/1", 60_000) or (0, False)
    recovery = Recovery(fleet.app, ledger, lambda *about: None)
    work = lambda: done.append(recovery.recover(worker, "i", fence))  # noqa: E731
    threading.Thread(target=work, daemon=True).start()
    wait_until(lambda: done, timeout=30, what="it waits for the result backend")
    assert not [*ledger.read.running()], "all are taken back"
    told = [record for record in caplog.records if "did not answer within" in record.message]
    assert len(told) == 1, "it is not asked for each message"
