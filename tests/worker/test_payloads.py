"""What is too large, or cannot be opened, is kept as it came and harms nobody (SAP-6)."""

from __future__ import annotations

from typing import Any

import pytest

from tests import PATIENCE, sampled
from tests.apps.tasks import KillsItsReader
from tests.worker.apps import KILLS
from tests.worker.conftest import Crew

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)


def test_SAP_6_a_payload_above_the_limit_is_quarantined_before_it_runs(crew: Crew) -> None:
    crew.send("small", "x" * 5000)
    fits = crew.send("small", "x" * 50)
    with crew.worker():
        assert fits.get(timeout=PATIENCE) == 50
        crew.await_that(crew.quarantine.list, "in quarantine")
    (kept,) = crew.quarantine.list()
    assert kept.cause == "payload" and kept.payload_bytes > 5000
    assert crew.starts("small") == 1


@pytest.mark.parametrize("compression", ["application/x-gzip", ["gzip"]], ids=["of another kind", "a list"])
def test_SAP_6_a_body_that_cannot_be_unpacked_is_quarantined_as_it_was_received(
    crew: Crew, compression: Any
) -> None:
    with crew.app.connection_for_write() as connection:
        crew.app.amqp.Producer(connection).publish(
            b"this is not zlib",
            routing_key="celery",
            content_type="application/json",
            content_encoding="utf-8",
            headers={"id": "broken", "task": "fleet.healthy", "compression": compression},
        )
    with crew.worker():
        crew.await_that(crew.quarantine.list, "in quarantine")
    (kept,) = crew.quarantine.list()
    assert kept.cause == "payload" and crew.quarantine.message(kept.mid).body == b"this is not zlib"
    assert (kept.crashes, kept.failures) == (0, 0), "at its first delivery"


@BOTH
@pytest.mark.parametrize("pool", sampled(["prefork"], ["solo"]))
@pytest.mark.parametrize(
    ("argument", "options"),
    [
        pytest.param(KillsItsReader(), {"serializer": "pickle"}, id="pickle"),
        pytest.param("x", {"compression": KILLS}, id="compressed"),
    ],
)
def test_SAP_6_a_payload_above_the_limit_is_never_opened(
    crew: Crew, pool: str, argument: Any, options: dict[str, Any]
) -> None:
    """Whoever decodes or decompresses one of these dies of it."""
    bomb = crew.app.tasks["fleet.small"].apply_async(([argument, "x" * 5000],), **options)
    fits = crew.send("small", "x" * 50)
    with crew.worker(pool=pool) as worker:
        assert fits.get(timeout=PATIENCE) == 50
        crew.await_that(crew.quarantine.list, "in quarantine")
        assert worker.is_alive()
    (kept,) = crew.quarantine.list()
    assert (kept.id, kept.cause, kept.crashes, kept.strikes) == (bomb.id, "payload", 0, 0)
    assert kept.payload_bytes == len(crew.quarantine.message(kept.mid).body) > 5000
    assert not crew.events("crashed") and crew.starts("small") == 1
