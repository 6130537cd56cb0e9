"""What a person releases runs, is refused before it is published, or comes back with the reason (NEW-26)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from celery import chord

from celery_poison.keep.stored_message import able_to_run
from celery_poison.model import StoredMessage
from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper

YESTERDAY = datetime.now(UTC) - timedelta(days=1)


def test_NEW_26_what_has_expired_is_published_without_its_expiry_or_refused_before(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1, expires=YESTERDAY)
    (refused,) = fleet.quarantine.release([mid], keep_expiry=True)
    assert not refused.done and "it expired at" in refused.error
    assert not keeper.raw_on_redis("celery")

    (outcome,) = fleet.quarantine.release([mid])
    assert outcome.done, outcome
    (released,) = keeper.raw_on_redis("celery")
    assert released["headers"]["expires"] is None


def test_NEW_26_a_member_of_a_chord_whose_results_may_have_expired_is_released_only_with_force(
    fleet: Fleet, keeper: Keeper
) -> None:
    healthy = fleet.app.tasks["fleet.healthy"]
    chord([healthy.s(1)], healthy.si(2)).apply_async()
    member, alone = keeper.keep(keeper.receive()), keeper.send_and_keep("fleet.healthy", 3)
    (early,) = fleet.quarantine.release([member])
    assert early.done, "its chord waits still"
    member = keeper.keep(keeper.receive(), release=1)
    fleet.app.conf.result_expires = timedelta(milliseconds=1)

    refused, other = fleet.quarantine.release([member, alone])
    assert (
        "older than result_expires" in refused.error
        and "its body fleet.healthy would not run" in refused.error
    )
    assert not refused.done and other.done, "nobody's chord waits for it"
    assert [fleet.quarantine.release([member], force=True)[0].done] == [True]


def test_NEW_26_a_release_gives_the_broker_no_time_after_which_it_may_drop_the_message() -> None:
    properties = {"expiration": "1000", "priority": 3}
    released = able_to_run(
        StoredMessage(
            body=b"", content_type="", content_encoding="", headers={"id": "x"}, properties=properties
        )
    )
    assert released.properties == {"priority": 3} and released.headers == {"id": "x"}


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_NEW_26_a_released_message_that_its_worker_would_discard_comes_back_with_the_reason(
    fleet: Fleet, keeper: Keeper
) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=3)
    revoked = keeper.send_and_keep("fleet.healthy", 2, task_id="revoked")
    expired = keeper.send_and_keep("fleet.healthy", 3, task_id="expired", expires=soon)
    stamps = {"stamped_headers": ["batch"], "batch": ["b7"]}
    stamped = keeper.send_and_keep("fleet.healthy", 4, task_id="stamped", **stamps)
    passing = keeper.send_and_keep("fleet.healthy", 1, expires=soon, task_id="passing")
    assert all(outcome.done for outcome in fleet.quarantine.release([passing]))
    wait_until(lambda: datetime.now(UTC) > soon)
    with fleet.worker() as worker:
        worker.wait_ready()
        wait_until(lambda: fleet.app.control.revoke("revoked", reply=True))
        wait_until(lambda: fleet.app.control.revoke_by_stamped_headers({"batch": ["b7"]}, reply=True))
        assert all(outcome.done for outcome in fleet.quarantine.release([revoked, expired, stamped]))

        assert fleet.app.AsyncResult("expired").get(timeout=PATIENCE)
        kept = wait_until(
            lambda: len(records := fleet.quarantine.list()) == 3 and records, what=fleet.log_text
        )
        reasons = {record.id: record.reason for record in kept}
        assert "expired before it could begin" in reasons["passing"]
        assert "is revoked" in reasons["revoked"] and "is revoked" in reasons["stamped"]

        assert all(outcome.done for outcome in fleet.quarantine.release([passing]))
        assert fleet.app.AsyncResult("passing").get(timeout=PATIENCE), "it leaves without its expiry now"
