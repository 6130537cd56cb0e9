"""The fleet gate in the ledger: closed in the step that buries, read in the steps that judge (NEW-1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.fleet import DeclaredDead, GateLimits, Silence
from celery_poison.ledger.messages import RecordedEnd
from celery_poison.model import Guilt, Start

HALF = GateLimits(share=0.5, workers=3, window_ms=60_000)


class DyingFleet:
    """A fleet whose workers die when they are told to."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.queries = ledger.read
        led = ledger.fleet.lead("monitor", 60_000)
        assert led is not None
        self.fence = led[0]
        self._bury = 0

    def born(self, *names: str, stopping: int = 0, lately: bool = False) -> None:
        for name in names:
            self.ledger.fleet.beat(name, {"node": name, "stopping": stopping}, first=True)
            if not lately:
                self.ledger.client.hset(self.ledger.keys.worker(name), "since", 1)

    def declare_dead(
        self, worker: str, gate: GateLimits | None = HALF, earlier: tuple[str, ...] = ()
    ) -> DeclaredDead:
        self._bury += 1
        iid = f"i{self._bury}"
        done = self.ledger.fleet.declare_dead(worker, iid, Silence.SILENT, 0, self.fence, gate, earlier)
        assert done is not None
        return done

    def crash(self, token: str, *, shared: bool, alone: int = 0, told_by_monitor: bool = True) -> RecordedEnd:
        start = Start("R", token, "w1/b", 7, 1, 1, alone, "t1", "shop.convert", "celery", 2, 5, 10, 1)
        assert self.ledger.messages.claim("m1", b"", start)
        fence = self.fence if told_by_monitor else None
        return self.ledger.messages.crash("m1", start, cause="worker_lost", shared=shared, fence=fence)

    def told(self, event: str) -> list[dict[str, str]]:
        return [entry for entry in self.queries.journal() if entry["event"] == event]


@pytest.fixture
def dying(redis_url: str) -> Iterator[DyingFleet]:
    with open_redis(redis_url) as client:
        yield DyingFleet(Ledger(client, Keys()))


def test_NEW_1_the_gate_closes_with_the_death_that_makes_half_of_the_fleet(dying: DyingFleet) -> None:
    dying.born(*(f"w{n}/b" for n in range(6)))
    assert dying.declare_dead("w0/b") == DeclaredDead("worker_lost", False, 1, 6)
    assert dying.declare_dead("w1/b") == DeclaredDead("worker_lost", False, 2, 6)
    assert not dying.queries.gate().closed
    assert dying.declare_dead("w2/b") == DeclaredDead("worker_lost", True, 3, 6)
    seen = dying.queries.gate()
    assert (seen.closed, seen.deaths, seen.fleet) == (True, 3, 6)
    assert seen.until and seen.closed_at and round(seen.until - seen.closed_at) == 60
    (entry,) = dying.told("gate_closed")
    assert (entry["worker"], entry["incident"], entry["note"]) == ("w2/b", "i3", "3 of 6 workers died")
    assert dying.declare_dead("w3/b") == DeclaredDead("worker_lost", False, 4, 6), "it is closed already"
    assert dying.queries.gate().deaths == 4 and len(dying.told("gate_closed")) == 1


@pytest.mark.parametrize("alive", [4, 5])
def test_NEW_1_three_of_seven_are_not_half_and_two_of_three_are_not_three(
    dying: DyingFleet, alive: int
) -> None:
    dying.born(*(f"w{n}/b" for n in range(3 + alive)))
    assert not any(dying.declare_dead(f"w{n}/b").closed_gate for n in range(3))
    assert not dying.queries.gate().closed


def test_NEW_1_two_deaths_are_too_few_even_if_they_are_the_whole_fleet(dying: DyingFleet) -> None:
    dying.born("w0/b", "w1/b")
    assert not any(dying.declare_dead(f"w{n}/b").closed_gate for n in range(2))


def test_NEW_1_one_node_that_dies_again_and_again_closes_nothing(dying: DyingFleet) -> None:
    dying.born("other/b")
    for life in range(5):
        dying.born(f"w/{life}")
        assert dying.declare_dead(f"w/{life}") == DeclaredDead("worker_lost", False, 1, 2)


def test_NEW_1_who_is_started_in_the_place_of_the_dead_does_not_make_the_fleet_larger(
    dying: DyingFleet,
) -> None:
    dying.born(*(f"pod{n}/b" for n in range(6)))
    for n in range(3):
        done = dying.declare_dead(f"pod{n}/b")
        dying.born(f"pod{n}x/b", f"pod{n}y/b", lately=True)
    assert (done.deaths, done.fleet, done.closed_gate) == (3, 6, True)


def test_NEW_1_shutdowns_and_deaths_beyond_the_window_do_not_count(dying: DyingFleet) -> None:
    dying.born("w3/b", "w4/b", "w5/b")
    dying.born("w0/b", stopping=1)
    assert dying.declare_dead("w0/b") == DeclaredDead("eviction")
    dying.born("w1/b", "w2/b")
    dying.declare_dead("w1/b")
    dying.ledger.client.zincrby(dying.ledger.keys.deaths, -61_000, "w1/b")
    assert dying.declare_dead("w2/b").deaths == 1


def test_NEW_1_deaths_with_a_message_in_common_count_once(dying: DyingFleet) -> None:
    dying.born(*(f"w{n}/b" for n in range(4)))
    dying.declare_dead("w0/b")
    assert dying.declare_dead("w1/b", earlier=("w0/b",)).deaths == 1
    assert dying.declare_dead("w2/b", earlier=("w1/b", "w0/older")).deaths == 1
    assert not dying.declare_dead("w3/b", earlier=("w2/b",)).closed_gate


def test_where_the_gate_is_switched_off_nobody_counts(dying: DyingFleet) -> None:
    dying.born("w0/b", "w1/b", "w2/b")
    assert [dying.declare_dead(f"w{n}/b", gate=None) for n in range(3)] == [DeclaredDead("worker_lost")] * 3
    assert not dying.ledger.client.exists(dying.ledger.keys.deaths)


def test_NEW_1_it_opens_by_itself_only_when_its_time_is_over(dying: DyingFleet) -> None:
    assert not dying.ledger.fleet.lift_gate(), "it was never closed"
    _close(dying)
    assert not dying.ledger.fleet.lift_gate()
    dying.ledger.client.hset(dying.ledger.keys.gate, "until", 1)
    assert not dying.queries.gate().closed, "whether somebody has noticed or not"
    assert not dying.crash("a.1", shared=True).gate_closed
    assert dying.ledger.fleet.lift_gate()
    assert not dying.ledger.fleet.lift_gate()
    assert [entry["actor"] for entry in dying.told("gate_lifted")] == [""]
    assert dying.ledger.client.exists(dying.ledger.keys.deaths), "one more death may close it again"


def test_NEW_1_who_lifts_it_by_hand_has_explained_the_deaths(dying: DyingFleet) -> None:
    _close(dying)
    assert dying.ledger.fleet.lift_gate("ann", "a node failed")
    seen = dying.queries.gate()
    assert (seen.closed, seen.lifted_by) == (False, "ann")
    dying.born("w3/b")
    assert dying.declare_dead("w3/b").deaths == 1
    (entry,) = dying.told("gate_lifted")
    assert (entry["actor"], entry["note"]) == ("ann", "a node failed")


def test_NEW_1_with_the_gate_closed_the_death_of_a_worker_is_proof_only_the_second_time(
    dying: DyingFleet,
) -> None:
    _close(dying)
    seen = []
    for n, alone in enumerate((0, 1, 1)):
        recorded = dying.crash(f"a.{n}", shared=not alone, alone=alone)
        assert recorded.gate_closed
        seen.append((recorded.history.proven, recorded.history.tried, recorded.history.doubted))
    assert seen == [(0, 0, True), (0, 0, True), (1, 1, True)]
    entries = [(entry["outcome"], entry["note"]) for entry in dying.told("crashed")]
    chance = "it ran alone, but many workers died at once"
    assert entries == [("shared", ""), ("shared", chance), ("exact", "")]


@pytest.mark.parametrize("alone", [0, 1, 2])
def test_NEW_1_what_a_worker_saw_die_is_proof_all_the_same(dying: DyingFleet, alone: int) -> None:
    _close(dying)
    history = dying.crash("a.1", shared=False, alone=alone, told_by_monitor=False).history
    assert (history.proven, history.tried, history.doubted) == (1, int(alone > 0), False)


@pytest.mark.parametrize("alone", [0, 1])
def test_EMS_8_a_death_that_was_none_leaves_no_proof_and_no_trial_behind(
    dying: DyingFleet, alone: int
) -> None:
    before = dying.crash("a.1", shared=True).history
    dying.crash("a.2", shared=False, alone=alone)
    token, worker = "a.2", "w1/br1"
    start = Start("R", token, worker, 7, 1, 1, alone, "t1", "shop.convert", "celery", 2, 5, 10, 1)
    dying.ledger.messages.reclaim("m1", start)
    history = dying.queries.history("t1")
    assert (history.crashes, history.strikes, history.proven, history.tried) == (1, 1, 0, 0)
    assert (before.proven, before.tried) == (0, 0)


def test_EMS_8_a_death_that_was_none_does_not_use_up_the_one_that_may_be_chance(dying: DyingFleet) -> None:
    dying.crash("a.0", shared=True)
    _close(dying)
    for token in ("a.1", "a.2", "a.3"):
        start = Start("R", token, "w1/b", 7, 1, 1, 1, "t1", "shop.convert", "celery", 2, 5, 10, 1)
        assert dying.crash(token, shared=False, alone=1).history.proven == 0
        dying.ledger.messages.reclaim("m1", start)
        dying.ledger.client.hdel(dying.ledger.keys.running, "m1")


def test_NEW_1_a_look_tells_how_the_gate_stands(dying: DyingFleet) -> None:
    assert not dying.ledger.messages.look("m1", "t1", 1000).gate_closed
    _close(dying)
    assert dying.ledger.messages.look("m1", "t1", 1000).gate_closed


def test_NEW_1_who_is_cleared_is_in_doubt_no_more(dying: DyingFleet) -> None:
    _close(dying)
    assert dying.crash("a.1", shared=True).history.doubted
    start = Start("R", "a.2", "w1/b", 7, 1, 1, 1, "t1", "shop.convert", "celery", 2, 5, 10, 1)
    dying.ledger.messages.acquit("m1", start, Guilt.CLEARED)
    assert not dying.queries.history("t1").doubted


def _close(dying: DyingFleet) -> None:
    dying.born("w0/b", "w1/b", "w2/b")
    done: Any = [dying.declare_dead(f"w{n}/b") for n in range(3)]
    assert done[-1].closed_gate
