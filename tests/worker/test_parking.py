"""A copy of a message that runs: parked within seconds, dropped if that run ends, run if it dies (TP1-8)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery.signals import before_task_publish

from celery_poison.broker.publish import Publisher
from celery_poison.fleet.parking import Parking
from celery_poison.headers import MARK, MID, PARK
from celery_poison.keep.stored_message import original, pack
from celery_poison.model import Start, StoredMessage
from celery_poison.plugin import plugin_of
from celery_poison.policy import Policy
from celery_poison.worker.delivery import needs_care, note_delivery
from tests import PATIENCE, sampled
from tests.desk.keeping import Keeper
from tests.worker.conftest import Crew
from tests.worker.test_nobody_is_to_blame import _cut_broker_connections

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)


@pytest.fixture
def crew(new_crew: Any, broker_url: str) -> Crew:
    crew: Crew = new_crew(broker_url, worker_prefetch_multiplier=1)
    return crew


@contextmanager
def _copies_of(mid: str) -> Iterator[None]:
    """What is sent in here is one more copy of that message, marked for a look-up."""

    def stamp(headers: dict[str, Any], **_: Any) -> None:
        headers.update({MID: mid, MARK: 1})

    before_task_publish.connect(stamp, weak=False)
    try:
        yield
    finally:
        before_task_publish.disconnect(stamp)


def _parked(crew: Crew) -> int:
    return crew.quarantine.queries.totals()["parked"]


def _runs_with_a_parked_copy(crew: Crew) -> str:
    """One worker is there; it runs a message, and a second one joins it and receives a copy."""
    sent = crew.send("waits_for_repair", 1)
    crew.await_that(lambda: crew.starts("waits_for_repair") == 1, "runs")
    crew.await_that(lambda: not crew.nothing_runs(), "on record")
    ((mid, _, _),) = crew.quarantine.queries.running()
    with _copies_of(mid):
        crew.send("waits_for_repair", 1, task_id=sent.id)
    return mid


def _is_over(crew: Crew) -> None:
    crew.await_that(lambda: crew.marks.count("waits_for_repair", "end"), "ended")
    crew.await_that(lambda: not _parked(crew) and crew.nothing_runs(), "the copy went with its message")
    # Whatever copies there are come before this one.
    assert crew.send("healthy", 99).get(timeout=PATIENCE) == 99
    assert crew.marks.count("waits_for_repair", "end") == {1: 1}
    crew.await_that(lambda: not crew.quarantine.list(state="TBDL"), "cleared when it is settled")
    assert not crew.quarantine.list()


@BOTH
def test_TP1_8_a_copy_of_a_running_message_costs_neither_a_slot_nor_credit_and_goes_with_it(
    crew: Crew,
) -> None:
    with crew.worker(concurrency=1), crew.worker("w2", concurrency=1):
        mid = _runs_with_a_parked_copy(crew)
        crew.await_that(lambda: _parked(crew) == 1, "parked")
        (record,) = crew.quarantine.list(state="TBDL")
        assert (record.mid, record.queue) == (mid, "celery")
        for n in range(5):
            crew.send("healthy", n)
        crew.await_that(lambda: len(crew.marks.count("healthy", "end")) == 5, "the other worker goes on")
        assert crew.starts("waits_for_repair") == 1 and _parked(crew) == 1
        crew.marks.repair()
        _is_over(crew)
    assert crew.starts("waits_for_repair") == 1
    assert [entry["mid"] for entry in crew.events("duplicate")] == [mid]
    assert crew.no_strikes()


@pytest.mark.parametrize("broker_url", sampled(["rabbitmq"], ["redis"]), indirect=True)
def test_TP1_8_when_the_run_dies_a_message_with_a_parked_copy_runs_once_more_and_not_twice(
    crew: Crew,
) -> None:
    with crew.worker(concurrency=1) as first, crew.worker("w2", concurrency=1) as second:
        _runs_with_a_parked_copy(crew)
        crew.await_that(lambda: _parked(crew) == 1, "parked")
        (mark,) = crew.marks.all("waits_for_repair", "start")
        runs_it = first if first.main_pid == mark.ppid else second
        runs_it.kill_group()
        runs_it.wait()
        crew.await_that(lambda: crew.starts("waits_for_repair") == 2, "runs again")
        crew.marks.repair()
        _is_over(crew)
    assert crew.starts("waits_for_repair") == 2


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("dies", sampled([True], [False]))
def test_TP1_8_after_a_reconnect_the_only_copy_left_is_parked_and_runs_if_the_run_dies(
    crew: Crew, dies: bool, request: pytest.FixtureRequest
) -> None:
    crew.send("waits_for_repair", 1)
    with crew.worker() as first:
        crew.await_that(lambda: crew.starts("waits_for_repair") == 1, "runs")
        _cut_broker_connections(crew, request)
        crew.await_that(lambda: _parked(crew) == 1, "delivered again, and parked")
        if dies:
            first.kill_group()
            first.wait()
        else:
            crew.marks.repair()
            crew.await_that(lambda: not _parked(crew) and crew.nothing_runs(), "dropped")
    with crew.worker("w2"):
        if dies:
            crew.await_that(lambda: crew.starts("waits_for_repair") == 2, "published again, and run")
            crew.marks.repair()
        crew.await_that(lambda: crew.marks.count("waits_for_repair", "end"), "ended")
        crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.marks.count("waits_for_repair", "end") == {1: 1}
    assert crew.starts("waits_for_repair") == 1 + dies
    assert len(crew.events("unparked")) == dies
    assert not crew.quarantine.list(state="TBDL")


@pytest.mark.parametrize("dies", [False, True])
def test_NEW_9_after_a_reconnect_to_redis_no_copy_comes_of_what_runs_and_it_runs_again_if_the_run_dies(
    crew: Crew, dies: bool, request: pytest.FixtureRequest
) -> None:
    crew.send("waits_for_repair", 1)
    with crew.worker() as first:
        crew.await_that(lambda: crew.starts("waits_for_repair") == 1, "runs")
        _cut_broker_connections(crew, request)
        crew.send("healthy", 2)
        crew.await_that(lambda: crew.marks.count("healthy", "end"), "it is connected again")
        if dies:
            first.kill_group()
            first.wait()
        else:
            crew.marks.repair()
            crew.await_that(crew.nothing_runs, "acknowledged and forgotten")
    with crew.worker("w2"):
        if dies:
            crew.await_that(lambda: crew.starts("waits_for_repair") == 2, "put back, and run")
            crew.marks.repair()
        crew.await_that(lambda: crew.marks.count("waits_for_repair", "end"), "ended")
        crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.marks.count("waits_for_repair", "end") == {1: 1}
    assert crew.starts("waits_for_repair") == 1 + dies
    copies = [event["task"] for event in crew.events("parked", "duplicate")]
    assert not any(task.endswith("waits_for_repair") for task in copies), "another may have been owed its end"


@BOTH
def test_TP1_8_a_monitor_that_dies_between_publishing_and_noting_it_makes_nothing_run_twice(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(crew.app)
    ledger = keeper.ledger
    keeper.sign()
    crew.send("healthy", 7)
    message = _received(crew, keeper)
    mid, id = message.headers[MID], message.headers["id"]
    start = Start("R", "b.1", "gone/b", 1, 1, 1, 0, id, "fleet.healthy", "celery", 2, 5, 10, 1)
    ledger.messages.claim(mid, b"", start)
    parcel = pack(original(message))
    assert ledger.parking.park(mid, start.encode(), start, number=0, parcel=parcel)
    message.ack()
    keeper.close()
    lot = Parking(crew.app, ledger, plugin_of(crew.app).settings)
    assert lot.round() == 0, "it runs, as far as anybody knows"
    ledger.messages.interrupt(mid, start, cause="unknown")

    def dies(*args: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(ledger.parking), "unpark", dies)
        with pytest.raises(KeyboardInterrupt):
            lot.round()
    assert lot.round() == 1, "its successor publishes it again"
    assert lot.round() == 0, "and no more"
    with crew.worker(concurrency=1):
        crew.await_that(lambda: crew.events("duplicate"), "the second copy dropped")
        crew.await_that(crew.nothing_runs, "forgotten")
        assert crew.send("healthy", 8).get(timeout=PATIENCE) == 8
    assert crew.marks.count("healthy", "start") == {7: 1, 8: 1}


def _received(crew: Crew, keeper: Keeper) -> Any:
    found: list[Any] = []

    def arrived() -> bool:  # RabbitMQ takes a moment
        try:
            found.append(keeper.receive())
        except AssertionError:
            return False
        return True

    crew.await_that(arrived, "arrived")
    return found[0]


def test_TP1_8_a_message_whose_queue_is_gone_stays_parked_and_holds_up_nobody(
    crew: Crew, rabbit_url: str, new_crew: Any
) -> None:
    crew = new_crew(rabbit_url)
    ledger = plugin_of(crew.app).open_ledger()
    with Publisher(crew.app) as publisher:
        publisher._connection.default_channel.queue_declare("there", auto_delete=False)
    parcel = pack(StoredMessage(body=b"x", content_type="", content_encoding=""))
    for mid, queue in (("a", "nowhere"), ("b", "there"), ("c", "nowhere")):
        start = Start("R", f"t{mid}", "gone/b", 1, 1, 1, 0, mid, "t", queue, 2, 5, 10, 1)
        ledger.messages.claim(mid, b"", start)
        assert ledger.parking.park(mid, start.encode(), start, number=0, parcel=parcel)
        ledger.messages.claim(mid, start.encode(), None)
    assert Parking(crew.app, ledger, plugin_of(crew.app).settings).round() == 1
    assert _parked(crew) == 2
    assert {record.mid for record in crew.quarantine.list(state="TBDL")} == {"a", "c"}


def test_EMS_7_a_copy_that_was_parked_is_looked_up_and_counts_as_redelivered() -> None:
    from kombu.message import Message

    headers = {"id": "id", "task": "t", PARK: 1_763_000_000_123}
    message = Message(body=b"[]", headers=headers, content_type="application/json", delivery_info={})
    assert needs_care(message, Policy())
    delivery = note_delivery(message, Policy(), diverts=True, token="t", worker="w", pid=1, epoch=1)
    assert (delivery.look, delivery.redelivered, delivery.is_unique) == (True, True, True)
    assert delivery.park == 1_763_000_000_123
