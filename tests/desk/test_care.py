"""Release with care: a canary first, no faster than asked, and no further once one has died again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from celery_poison.broker.publish import Publisher
from celery_poison.desk.care import BadCare, Feed, Pace
from celery_poison.errors import IllegalTransition
from celery_poison.model import Start
from celery_poison.quarantine import Care
from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper

IDS = ["a", "b", "c", "d"]
CANARY = Care(canary=True, soak=60)


class Stage:
    """A release on which time passes only while it sleeps.

    Args:
        happens: second -> what the journal is told then, as (task id, event, outcome).
        waiting: second -> messages in the queue from then on, beside those that were released.
        refused: ids whose messages cannot be released.
    """

    def __init__(
        self,
        care: Care,
        happens: dict[float, tuple[str, str, str]] | None = None,
        waiting: dict[float, int] | None = None,
        refused: str = "",
    ) -> None:
        self.now = 1000.0
        self.told: list[str] = []
        #: Id -> the second at which its message was released.
        self.released: dict[str, float] = {}
        self._happens = sorted((happens or {}).items())
        self._waiting = waiting or {0: 0}
        self._refused = refused
        self.pace = Pace(care, self, lambda id: "q", self._depth, self.told.append, self._clock, self._sleep)

    def run(self, ids: list[str] = IDS) -> Stage:
        for id in chain.from_iterable(self.pace.let_go(ids)):
            if id not in self._refused:
                self.released[id] = self.now - 1000
                self.pace.note_release(id)
        return self

    def __iter__(self) -> Iterator[dict[str, str]]:
        while self._happens and self._happens[0][0] <= self.now - 1000:
            _, (id, event, outcome) = self._happens.pop(0)
            fields = dict.fromkeys(
                ("worker", "runtime_ms", "incident", "crashes", "strikes", "note", "evidence"), ""
            )
            yield fields | {"id": id, "event": event, "outcome": outcome, "task": "t", "cause": "signal:9"}

    def _depth(self, queue: str) -> int:
        assert queue == "q"
        since = max(second for second in self._waiting if second <= self.now - 1000)
        return self._waiting[since] + len(self.released)

    def _clock(self) -> float:
        return self.now

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        assert self.now < 5000, "it waits for ever"
        self.now += seconds


# --- the canary ------------------------------------------------------------------------------------


def test_NEW_6_the_others_follow_a_canary_that_ended_well_once_its_soak_is_over() -> None:
    stage = Stage(CANARY, {1: ("a", "finished", "success"), 2: ("a", "cleared", "")}).run()
    assert stage.released == {"a": 0, "b": 60, "c": 60, "d": 60}
    assert stage.pace.stopped_by == ""
    assert stage.told[:2] == [
        "the canary a is released: it has 1 min to end well, 3 wait for that",
        "the canary a ended well",
    ]


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        ({1: ("a", "crashed", "exact")}, "the canary died again or came back: a t killed its process"),
        ({1: ("a", "quarantined", "")}, "the canary died again or came back: a t moved to quarantine"),
        ({1: ("a", "finished", "failure")}, "the canary a ended with an error (failure)"),
        ({1: ("a", "cleared", ""), 2: ("a", "finished", "failure")}, "ended with an error"),
        ({1: ("a", "finished", "success"), 59: ("a", "crashed", "exact")}, "died again"),
        ({1: ("a", "finished", "retry"), 2: ("a", "finished", "failure")}, "ended with an error"),
        ({1: ("a", "finished", "retry"), 2: ("a", "cleared", "")}, "has not ended within 1 min"),
        ({1: ("a", "rolled_back", "")}, "has not ended within 1 min"),
        ({1: ("a", "interrupted", "")}, "has not ended within 1 min"),
        ({1: ("other", "finished", "success")}, "has not ended within 1 min"),
        ({61: ("a", "finished", "success")}, "has not ended within 1 min"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stop_on_death", [True, False])
def test_NEW_6_nothing_follows_a_canary_that_did_not_end_well(
    happens: dict[float, Any], why: str, stop_on_death: bool
) -> None:
    stage = Stage(Care(canary=True, soak=60, stop_on_death=stop_on_death), happens).run()
    assert list(stage.released) == ["a"]
    assert stage.pace.held_back == ["b", "c", "d"]
    assert why in stage.pace.stopped_by


def test_NEW_6_a_canary_may_retry_within_its_soak() -> None:
    retried = {1: ("a", "finished", "retry"), 2: ("a", "cleared", ""), 50: ("a", "finished", "success")}
    assert list(Stage(CANARY, retried).run().released) == IDS


def test_NEW_6_a_canary_that_ended_alive_is_believed_where_the_journal_tells_no_more() -> None:
    assert list(Stage(CANARY, {1: ("a", "cleared", "")}).run().released) == IDS


def test_NEW_6_the_first_message_that_can_be_released_is_the_canary() -> None:
    stage = Stage(CANARY, {1: ("b", "finished", "success")}, refused="a").run()
    assert stage.released == {"b": 0, "c": 60, "d": 60}


def test_NEW_6_one_message_alone_is_waited_for_by_nobody() -> None:
    stage = Stage(CANARY).run(["a"])
    assert (stage.now, stage.told) == (1000, [])


# --- pace ------------------------------------------------------------------------------------------


def test_NEW_6_no_more_messages_go_than_the_rate_allows() -> None:
    stage = Stage(Care(rate=0.1)).run()
    assert list(stage.released.values()) == [0, 10, 20, 30]
    assert "2 of 4 released, 2 not ended yet" in stage.told


def test_NEW_6_no_more_go_while_so_many_wait_in_the_queue() -> None:
    stage = Stage(Care(max_waiting=3), {1: ("a", "cleared", "")}, waiting={0: 2, 20: 0, 30: -5}).run()
    assert stage.released == {"a": 0, "b": 20, "c": 20, "d": 30}


def test_NEW_6_no_more_go_while_so_many_of_the_released_have_not_ended() -> None:
    ends = {5: ("a", "finished", "failure"), 6: ("b", "finished", "retry"), 7: ("b", "cleared", "")}
    ends[9] = ("b", "finished", "success")
    stage = Stage(Care(max_waiting=2), ends, waiting={0: -9}).run()
    assert stage.released == {"a": 0, "b": 0, "c": 5, "d": 9}


# --- one dies again --------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["crashed", "quarantined", "would_quarantine"])
def test_NEW_6_no_more_go_once_one_has_died_again_or_come_back(event: str) -> None:
    stage = Stage(Care(rate=0.1), {12: ("a", event, "")}).run()
    assert list(stage.released) == ["a", "b"]
    assert stage.pace.held_back == ["c", "d"]
    assert stage.pace.stopped_by.startswith("a t ")


def test_NEW_6_whoever_wants_it_goes_on_though_one_has_died_again() -> None:
    stage = Stage(Care(rate=0.1, stop_on_death=False), {12: ("a", "crashed", "")}).run()
    assert list(stage.released) == IDS


def test_NEW_6_an_error_or_the_death_of_another_message_stops_nothing() -> None:
    happens = {5: ("a", "finished", "failure"), 6: ("other", "crashed", "")}
    assert list(Stage(Care(rate=0.1), happens).run().released) == IDS


@pytest.mark.parametrize("wrong", [{"soak": 0.0}, {"rate": -1.0}, {"max_waiting": 0}, {"soak": float("nan")}])
def test_care_that_cannot_be_taken_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadCare, match="must be above zero"):
        Care(**wrong)


# --- with a ledger ---------------------------------------------------------------------------------


def test_NEW_6_what_the_journal_tells_of_a_released_message_stops_the_release(
    fleet: Fleet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_poison.desk.care.LOOK_EVERY", 0.0)
    monkeypatch.setattr("celery_poison.desk.care.RELEASED_AT_ONCE", 2)
    mids = [keeper.send_and_keep("fleet.healthy", n) for n in range(4)]
    heard = []

    def hear(outcome: Any) -> None:
        heard.append(outcome)
        if outcome.mid == mids[1] and outcome.done:
            keeper.receive()  # the first one's
            keeper.keep(keeper.receive(), crashes=1)

    outcomes = fleet.quarantine.release(mids, on_outcome=hear)
    assert outcomes == heard
    assert [outcome.done for outcome in outcomes] == [True, True, False, False]
    assert [outcome.mid for outcome in outcomes] == mids
    id = outcomes[1].id
    assert outcomes[2].error.startswith(f"not released: {id} fleet.healthy killed its process by SIGKILL on")
    assert {record.mid for record in fleet.quarantine.list()} == {*mids[1:]}
    assert all(outcome.done for outcome in fleet.quarantine.release(mids[1:])), "the same once more goes on"


def test_NEW_6_who_only_wants_to_know_of_deaths_reads_no_journal_that_tells_of_none(
    fleet: Fleet, keeper: Keeper
) -> None:
    mids = [keeper.send_and_keep("fleet.healthy", n) for n in range(2)]
    every, deaths = Feed(keeper.ledger), Feed(keeper.ledger, deaths_only=True)
    fleet.quarantine.release(mids[:1])
    assert [entry["event"] for entry in every] == ["released"] and not [*deaths]
    fleet.quarantine.release(mids[1:])
    keeper.keep(keeper.receive(), crashes=1)
    assert [entry["event"] for entry in deaths] == ["released", "crashed", "quarantined"]
    assert not [*deaths], "heard once"
    keeper.ledger.quarantine.observe("m", Start.of("b.1", "w1@test/b", "i", "t"), cause="oom", reason="")
    assert [entry["event"] for entry in deaths] == ["would_quarantine"]


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_NEW_6_the_broker_tells_how_many_wait_in_a_queue_even_in_one_that_does_not_exist(
    fleet: Fleet, keeper: Keeper
) -> None:
    mids = [keeper.send_and_keep("fleet.healthy", n) for n in range(2)]
    with Publisher(fleet.app) as publisher:
        assert publisher.depth("nowhere") == 0
        assert publisher.depth("celery") == 0
        assert all(outcome.done for outcome in fleet.quarantine.release(mids, care=Care(max_waiting=3)))
        wait_until(lambda: publisher.depth("celery") == 2)


# --- to another queue ------------------------------------------------------------------------------


def test_NEW_6_a_queue_that_nobody_knows_is_refused_unless_forced(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    with pytest.raises(IllegalTransition, match="no worker consumes a queue 'bigmem'"):
        fleet.quarantine.release([mid], to="bigmem")
    assert fleet.quarantine.get(mid).state == "NDLV"


@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
def test_NEW_6_what_is_released_to_another_queue_stays_there(fleet: Fleet, keeper: Keeper) -> None:
    """On Redis a message is put back, and retried, by the address that it carries."""
    mid = keeper.send_and_keep("fleet.healthy", 1, priority=3)
    assert fleet.quarantine.release([mid], to="bigmem", force=True)[0].done
    assert not keeper.raw_on_redis()
    (raw,) = keeper.raw_on_redis("bigmem")
    info = raw["properties"]["delivery_info"]
    assert (info["exchange"], info["routing_key"]) == ("", "bigmem")
    assert raw["properties"]["priority"] == 3
    assert fleet.quarantine.get(mid).queue == "bigmem"
    assert fleet.events("released")[-1]["queue"] == "bigmem"
    keeper.keep(keeper.receive("bigmem"), crashes=1)
    assert fleet.quarantine.get(mid).queue == "bigmem"
    assert fleet.quarantine.release([mid])[0].done
    assert len(keeper.raw_on_redis("bigmem")) == 1


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_NEW_6_a_message_is_released_to_another_queue_on_RabbitMQ(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    (refused,) = fleet.quarantine.release([mid], to="bigmem", force=True)
    assert "the broker knows no queue 'bigmem'" in refused.error
    keeper.send_and_keep("fleet.healthy", 2, queue="bigmem")
    assert fleet.quarantine.release([mid], to="bigmem", force=True)[0].done
    assert keeper.take_from_rabbit("bigmem").properties["application_headers"]["poison_mid"] == mid
