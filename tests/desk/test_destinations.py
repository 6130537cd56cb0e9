"""What leaves quarantine by itself: for a queue of its own, or back to where it came from."""

from __future__ import annotations

from itertools import count, product
from typing import Any

import pytest
from celery import group

from celery_poison.broker import port, publish
from celery_poison.errors import IllegalTransition
from celery_poison.fleet.departures import Departures
from celery_poison.headers import MID, RELEASE, VERDICT
from celery_poison.ledger import decisions as transitions
from celery_poison.model import MessageRecord
from celery_poison.rules.destinations import TOLD, Route
from celery_poison.testing import wait_until
from tests import sampled
from tests.apps.factory import build_app
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.desk.test_release_byte_for_byte import FOREIGN
from tests.fleet.forked import DIED, Forked

DEAD = Route("dead.letters")
AGAIN = Route(retry_ms=0)


def outgoing(fleet: Fleet, keeper: Keeper) -> Departures:
    return Departures(fleet.app, keeper.ledger)


def told(record: MessageRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in TOLD}


def test_WAS_4_what_goes_to_a_queue_is_there_byte_for_byte_with_one_header_and_its_row_stays(
    fleet: Fleet, keeper: Keeper
) -> None:
    fleet.send("healthy", 1, headers=FOREIGN, priority=3)
    (sent,) = keeper.raw_on_redis()
    mid = keeper.keep(keeper.receive(), goes=DEAD)
    before = fleet.quarantine.get(mid)
    assert before.sent_at is None and "as soon as the broker takes it" in fleet.quarantine.detail(mid).story

    assert outgoing(fleet, keeper).round() == 1
    (there,) = keeper.raw_on_redis("dead.letters")
    headers = there["headers"]
    assert headers.pop(VERDICT) == told(before) and headers.pop(RELEASE) == 1
    for raw in (sent, there):
        for name in ("delivery_tag", "delivery_info"):
            del raw["properties"][name]
    assert there == sent

    (row,) = fleet.quarantine.list()
    assert (row.mid, row.state, row.queue, row.destination) == (mid, "NDLV", "celery", "dead.letters")
    assert row.sent_at and not keeper.ledger.client.hexists(keeper.ledger.keys.message(mid), "body")
    detail = fleet.quarantine.detail(mid)
    assert detail.stored is None and "in the queue dead.letters alone" in detail.story
    assert fleet.events("sent")[0]["note"] == "to the queue dead.letters"
    assert outgoing(fleet, keeper).round() == 0, "and no more"


def test_WAS_4_RabbitMQ_confirms_it_and_gets_the_queue_that_it_lacks(new_fleet: Any, rabbit_url: str) -> None:
    fleet = new_fleet(rabbit_url)
    keeper = Keeper(fleet.app)
    keeper.sign()
    try:
        result = fleet.send("healthy", 1, headers={"x-tenant": "acme"})
        mid = keeper.keep(keeper.receive(), goes=DEAD)
        before = fleet.quarantine.get(mid)
        assert outgoing(fleet, keeper).round() == 1
        there = keeper.take_from_rabbit("dead.letters")
        found = there.headers
        assert found["id"] == result.id and found["x-tenant"] == "acme"
        assert found[VERDICT] == told(before)
        assert fleet.quarantine.get(mid).sent_at
        assert "dead.letters" not in fleet.app.amqp.queues, "no worker consumes it for that"
    finally:
        keeper.close()


def test_WAS_4_what_a_person_may_still_do_about_a_message_in_another_queue(
    fleet: Fleet, keeper: Keeper
) -> None:
    results = group(fleet.app.tasks["fleet.healthy"].s(n) for n in range(3))().results
    first, second, third = [keeper.keep(keeper.receive(), goes=DEAD) for _ in results]
    assert outgoing(fleet, keeper).round() == 3
    for refused in (fleet.quarantine.release([first])[0], fleet.quarantine.edit(first, args=[2])):
        assert not refused.done and "a worker that consumes that queue runs it" in refused.error
    with pytest.raises(IllegalTransition, match="alone"):
        fleet.quarantine.message(first)
    with pytest.raises(IllegalTransition, match="sent to the queue"):
        keeper.ledger.decisions.decide(first, "release", "ann")  # somebody who looked before it was sent
    numbers = {raw["headers"][MID]: raw["headers"][RELEASE] for raw in keeper.raw_on_redis("dead.letters")}
    record = fleet.quarantine.get(first)
    state = keeper.ledger.messages.look(first, record.id, 1000)
    assert state.release == numbers[first], "or a worker would drop the only copy"

    (failed,) = fleet.quarantine.fail([second], actor="ann")
    assert failed.done, failed
    assert fleet.app.AsyncResult(fleet.quarantine.get(second).id).state == "FAILURE"
    assert fleet.quarantine.discard([third])[0].done
    assert {record.mid for record in fleet.quarantine.list(state="FAIL")} == {second, third}
    (purged,) = fleet.quarantine.purge([third], before=lambda detail: None)
    assert purged.done, purged


def test_WAS_4_an_error_transaction_hears_of_the_discarding_of_a_message_in_another_queue(
    new_fleet: Any, redis_url: str
) -> None:
    fleet = new_fleet(redis_url, poison_on_discard="fleet.healthy")
    keeper = Keeper(fleet.app)
    keeper.sign()
    try:
        mid = keeper.send_and_keep("fleet.slow", 1, goes=DEAD)
        assert outgoing(fleet, keeper).round() == 1
        (outcome,) = fleet.quarantine.discard([mid])
        assert outcome.done, outcome
        (told_of_it,) = keeper.raw_on_redis()
        assert told_of_it["headers"]["task"] == "fleet.healthy"
    finally:
        keeper.close()


def test_WAS_4_the_errbacks_of_a_message_in_another_queue_are_known_for_its_failing(
    fleet: Fleet, keeper: Keeper
) -> None:
    fleet.send("healthy", 1, link_error=fleet.app.tasks["fleet.healthy"].s())
    mid = keeper.keep(keeper.receive(), goes=DEAD)
    outgoing(fleet, keeper).round()
    assert fleet.quarantine.fail([mid])[0].done
    # The other one calls the hooks of the task itself.
    names = [message["headers"]["task"] for message in keeper.raw_on_redis()]
    assert sorted(names) == ["celery_poison.failed", "fleet.healthy"]


def test_WAS_5_a_message_goes_back_when_its_time_has_come_with_one_failure_left(
    fleet: Fleet, keeper: Keeper
) -> None:
    later = keeper.send_and_keep("fleet.healthy", 1, goes=Route(retry_ms=60_000))
    mid = keeper.send_and_keep("fleet.healthy", 2, cause="failures", goes=AGAIN)
    keeper.ledger.client.hset(keeper.ledger.keys.message(mid), "failures", 5)
    assert outgoing(fleet, keeper).round() == 1
    (raw,) = keeper.raw_on_redis()
    assert raw["headers"][MID] == mid and VERDICT not in raw["headers"]
    (waiting,) = fleet.quarantine.list()
    assert waiting.mid == later and waiting.retry_at
    assert "goes back to its queue by itself" in fleet.quarantine.detail(later).story
    history = keeper.ledger.messages.look(mid, fleet.quarantine.get(mid).id, 1000).history
    assert history.probation and history.failures == 4
    assert fleet.quarantine.get(mid).releases == 0, "nobody released it"


def test_WAS_5_a_person_may_be_faster_and_the_time_of_an_earlier_stay_means_nothing(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1, goes=Route(retry_ms=60_000))
    assert fleet.quarantine.release([mid])[0].done
    assert not keeper.ledger.client.zcard(keeper.ledger.keys.outgoing), "what is released has left"
    message = keeper.receive()
    keeper.keep(message)  # it comes back, and waits for a person now
    assert not keeper.ledger.client.zcard(keeper.ledger.keys.outgoing)

    given_up = keeper.send_and_keep("fleet.healthy", 2, goes=AGAIN)
    fleet.quarantine.discard([given_up])
    assert outgoing(fleet, keeper).round() == 0
    fleet.quarantine.restore([given_up])
    assert outgoing(fleet, keeper).round() == 0 and fleet.quarantine.get(given_up).retry_at is None


def test_MSG_4_a_destination_that_refuses_holds_up_nobody_and_loses_nothing(
    fleet: Fleet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = [keeper.send_and_keep("fleet.healthy", n, goes=Route("refuses")) for n in range(3)]
    others = [keeper.send_and_keep("fleet.healthy", n, goes=DEAD) for n in range(2)]
    put = publish.Publisher.publish

    def refusing(self: Any, stored: Any, queue: str, headers: Any) -> None:
        if queue == "refuses":
            raise port.NotPublished("the broker did not take the message: access refused")
        put(self, stored, queue, headers)

    mover = outgoing(fleet, keeper)
    with monkeypatch.context() as patch:
        patch.setattr(publish.Publisher, "publish", refusing)
        patch.setattr("celery_poison.fleet.departures.MOVED_AT_ONCE", 2)  # fewer than those that are stuck
        for _ in range(4):
            mover.round()
    assert {raw["headers"][MID] for raw in keeper.raw_on_redis("dead.letters")} == {*others}
    assert {r.mid for r in fleet.quarantine.list() if not r.sent_at} == {*stuck}
    assert all(fleet.quarantine.message(mid).body for mid in stuck), "they are in the system's quarantine"
    assert caplog.text.count("access refused") == 1
    for mid in stuck:
        keeper.ledger.client.zadd(keeper.ledger.keys.outgoing, {mid: 0})
    assert outgoing(fleet, keeper).round() == 3


def _copies(keeper: Keeper, queue: str) -> list[int]:
    """Return the numbers of the releases of all that waits in a queue."""
    if keeper.app.conf.broker_url.startswith("redis"):
        return [raw["headers"][RELEASE] for raw in keeper.raw_on_redis(queue)]
    return [headers[RELEASE] for headers, _ in keeper.all_on_rabbit(1, queue)]


#: What is moved, and where it is looked for afterwards.
MOVES = {"sent": (DEAD, "dead.letters"), "retried": (AGAIN, "celery"), "scheduled": (AGAIN, "celery")}


@pytest.mark.parametrize(
    ("broker_url", "name"),
    sampled(
        [("redis", "sent")], [*product(["redis"], ["retried", "scheduled"]), *product(["rabbitmq"], MOVES)]
    ),
    indirect=["broker_url"],
)
def test_WAS_8_a_monitor_killed_at_any_command_leaves_one_copy_that_counts(
    name: str, fleet: Fleet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes, queue = MOVES[name]
    ledger = keeper.ledger
    for number in count(1):
        mid = keeper.send_and_keep("fleet.healthy", number, goes=goes)
        id = fleet.quarantine.get(mid).id
        if name == "scheduled":
            ledger.decisions.schedule(mid, 0.001, 2, "ann", "")
            wait_until(lambda: ledger.read.outgoing(1), what="due")

        def move() -> None:
            app = build_app(fleet.environ())
            Departures(app, Keeper(app).ledger).round()

        monitor = Forked(move, number)
        monitor.wait()
        row = ledger.client.hgetall(ledger.keys.message(mid))
        assert b"body" in row or _copies(keeper, queue), f"lost at {number}"
        with monkeypatch.context() as patch:
            # Its successor goes on, once what the dead one reserved is abandoned.
            patch.setattr(transitions, "DECISION_PATIENCE_MS", 0)
            outgoing(fleet, keeper).round()
        recorded = ledger.messages.look(mid, id, 1000)
        copies = _copies(keeper, queue)
        assert copies.count(recorded.release) == 1, f"killed before command {number}"
        assert len(copies) <= 2 and max(copies) == recorded.release, "workers drop the older one"
        assert not ledger.client.zcard(ledger.keys.outgoing)
        if name == "scheduled":
            left = ledger.client.hget(ledger.keys.lineage(id), "releases_left")
            assert left == b"1", "once more if it comes back"
        keeper.empty(queue)
        if monitor.status != DIED:
            break
    assert number > 5, "it was killed at every command"


def test_WAS_8_a_worker_that_takes_the_copy_before_its_monitor_has_noted_it_wins(
    fleet: Fleet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1, goes=DEAD)
    id, ledger = fleet.quarantine.get(mid).id, keeper.ledger
    put = publish.Publisher.publish

    def taken_at_once(self: Any, stored: Any, queue: str, headers: Any) -> None:
        put(self, stored, queue, headers)
        ledger.decisions.complete_release(mid, id, headers[RELEASE], queue=queue)

    monkeypatch.setattr(publish.Publisher, "publish", taken_at_once)
    outgoing(fleet, keeper).round()
    assert not fleet.quarantine.list() and not ledger.client.zcard(ledger.keys.outgoing)
    wait_until(lambda: fleet.quarantine.get(mid).probation, what="on probation")
