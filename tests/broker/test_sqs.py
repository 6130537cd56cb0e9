"""SQS, which flags nothing as redelivered: a poison that kills its whole worker is stopped there too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.sqs import OPTIONS, SqsServer


@pytest.mark.rest
def test_SAP_3_NEW_30_on_SQS_a_poison_that_kills_its_worker_is_quarantined_at_its_second_death(
    sqs: SqsServer, new_fleet: Callable[..., Any]
) -> None:
    fleet = new_fleet(
        sqs.url,
        broker_transport_options=OPTIONS,
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
