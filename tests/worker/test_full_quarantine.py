"""The limit of the quarantine itself, at real workers (MSG-1, MSG-3, MSG-5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import PATIENCE, sampled
from tests.worker.conftest import Crew

BROKERS = pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)


def _limited(new_crew: Callable[..., Crew], url: str, behavior: str) -> Crew:
    limit = {"max_messages": 1, "max_messages_behavior": behavior}
    return new_crew(url, poison_queues={"celery.quarantine": limit})


@BROKERS
def test_MSG_3_a_full_quarantine_refuses_what_Celery_would_drop_and_nothing_else(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = _limited(new_crew, broker_url, "reject_new")
    first = crew.send("fails", "at-once")
    with crew.worker(pool="solo"):
        crew.await_that(crew.quarantine.list, "kept")
        refused = crew.send("fails", "at-once")
        crew.app.send_task("fleet.nowhere")
        exempt = crew.send("asks", "quarantine")
        crew.await_that(lambda: len(crew.quarantine.list()) == 2, "what is no such failure is kept")
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
    assert {record.id for record in crew.quarantine.list()} == {first.id, exempt.id}
    assert refused.state == "FAILURE", "its caller was told as ever"
    assert crew.log_text().count("is not kept: quarantine is full") == 1


@BROKERS
def test_MSG_5_the_oldest_makes_room_and_can_be_restored(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = _limited(new_crew, broker_url, "discard_old")
    sent = [crew.send("asks", "quarantine") for _ in range(3)]
    with crew.worker(pool="solo"):
        crew.await_that(lambda: len(crew.events("discarded")) == 2, "the oldest two made room")
    assert [record.id for record in crew.quarantine.list()] == [sent[2].id]
    mids = [record.mid for record in crew.quarantine.list(state="FAIL")]
    assert {entry["actor"] for entry in crew.events("discarded")} == {"poison_max_messages"}
    assert all(outcome.done for outcome in crew.quarantine.restore(mids))
    assert len(crew.quarantine.list()) == 3, "what a person brings back makes no room"
