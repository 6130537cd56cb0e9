"""What a monitor asks between two rounds: one exchange, which sees whatever a round would act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from celery_poison.fleet.glances import CLOSE, SELDOM, STANDBY_GLANCE, Glances
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.writer import Writer
from celery_poison.testing import wait_until

WORKERS = ("w1@h/b1", "w2@h/b2")


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        yield Ledger(client, Keys())


@pytest.fixture
def processes(ledger: Ledger) -> Iterator[dict[str, Writer]]:
    """Two workers with a lease and a subscribed connection."""
    with ExitStack() as stack:
        found = {worker: _connected(ledger, worker, stack) for worker in WORKERS}
        yield found


def _connected(ledger: Ledger, worker: str, stack: ExitStack) -> Writer:
    writer = Writer(ledger.client, ledger.keys.channel(worker))
    stack.callback(writer.close)
    assert writer.open()
    ledger.fleet.beat(worker, {"node": worker}, first=True, run_id=writer.run_id)
    return writer


def _seen(ledger: Ledger) -> Glances:
    glances = Glances(ledger, 2.0)
    glances.saw(ledger.fleet.watch(60_000))
    return glances


def _calls(ledger: Ledger) -> int:
    stats = ledger.client.info("commandstats")
    return sum(row["calls"] for name, row in stats.items() if name != "cmdstat_info")


def test_EMS_2_a_glance_sees_that_a_worker_has_lost_its_connections(
    ledger: Ledger, processes: dict[str, Writer]
) -> None:
    glances = _seen(ledger)
    assert glances.is_all_as_before() is not None
    processes[WORKERS[1]].close()
    wait_until(lambda: glances.is_all_as_before() is None, what="it is seen")
    fleet = ledger.fleet.watch(60_000)
    assert fleet.has_work, "the monitor looks soon again"
    assert fleet.channels == (ledger.keys.channel(WORKERS[0]),)
    assert fleet.due <= 1.0, "and when its patience is over at the latest"


def test_EMS_2_a_glance_sees_what_is_parked_and_to_leave_quarantine_and_a_round_who_has_come(
    ledger: Ledger, processes: dict[str, Writer]
) -> None:
    keys, glances = ledger.keys, _seen(ledger)
    for change in (
        lambda: ledger.fleet.beat("w3@h/b3", {"node": "w3@h"}, first=True),
        lambda: ledger.fleet.retire("w3@h/b3"),
    ):
        change()
        seen_before = glances.saw(ledger.fleet.watch(60_000)), glances.saw(ledger.fleet.watch(60_000))
        assert seen_before == (True, False)
    for change in (
        lambda: ledger.client.hset(keys.parcels, "mid", "x"),
        lambda: ledger.client.zadd(keys.outgoing, {"mid": 1e15}),
        lambda: ledger.client.hset(keys.open, "w9@h/b9", "incident"),
    ):
        glances = _seen(ledger)
        assert glances.is_all_as_before() is not None
        change()
        assert glances.is_all_as_before() is None


def test_EMS_2_a_glance_says_a_time_of_Redis_at_which_all_were_still_connected(
    ledger: Ledger, processes: dict[str, Writer]
) -> None:
    glances, before = _seen(ledger), ledger.fleet.watch(60_000).at_ms
    # A lower bound: what the last round's answer took on its way is missing from it.
    wait_until(lambda: (glances.is_all_as_before() or 0) > before, what="a glance's time goes on")
    seen_ms = glances.is_all_as_before()
    assert seen_ms is not None
    assert before < seen_ms <= ledger.fleet.watch(60_000).at_ms


def test_EMS_3_a_standby_sees_that_the_active_monitor_is_gone_or_has_let_its_lock_run_out(
    ledger: Ledger, processes: dict[str, Writer]
) -> None:
    standby, holder = Glances(ledger, 2.0), processes[WORKERS[0]]

    def is_held_still() -> bool:
        """Whether it takes it for held, glance after glance: it asks for the lock itself now and then."""
        return all(standby.is_held_still() for _ in range(SELDOM))

    assert not standby.is_held(), "nobody has the lock"
    assert ledger.fleet.lead(WORKERS[0], 60_000, holder.run_id)
    assert standby.is_held()
    assert is_held_still()
    ledger.client.delete(ledger.keys.monitor)
    assert not is_held_still()
    assert ledger.fleet.lead(WORKERS[0], 60_000, holder.run_id)
    assert standby.is_held()
    holder.close()
    wait_until(lambda: not standby.is_held_still(), what="its connections are gone")
    assert not standby.is_held(), "it tries to get the lock as often as ever"


def test_many_standbys_look_together_as_often_as_a_few(ledger: Ledger) -> None:
    for number in range(3 * CLOSE):
        ledger.fleet.beat(f"w{number}@h/b", {"node": "w"}, first=True)
    assert ledger.fleet.lead("w0@h/b", 60_000, "run")
    standby = Glances(ledger, 60.0)
    standby.is_held()
    assert standby.standby_pause >= 0.5 * 3 * STANDBY_GLANCE


def test_NEW_31_a_round_and_a_glance_take_as_many_commands_for_forty_workers_as_for_two(
    ledger: Ledger, processes: dict[str, Writer]
) -> None:
    def commands() -> list[int]:
        glances = _seen(ledger)
        before = _calls(ledger)
        ledger.fleet.watch(60_000)
        between = _calls(ledger)
        glances.is_all_as_before()
        return [between - before, _calls(ledger) - between]

    few = commands()
    with ExitStack() as stack:
        for number in range(38):
            _connected(ledger, f"x{number}@h/b", stack)
        assert commands() == few
        assert ledger.fleet.watch(60_000).counted == 40


def test_NEW_31_a_heartbeat_with_nothing_new_takes_six_commands_and_what_redis_has_lost_is_written_again(
    ledger: Ledger, processes: dict[str, Writer]
) -> None:
    (worker, *_), keys, client = WORKERS, ledger.keys, ledger.client

    def beat(**fields: int) -> int:
        before = _calls(ledger)
        ledger.fleet.beat(worker, {"node": worker, **fields}, run_id=processes[worker].run_id)
        return _calls(ledger) - before

    def few(**fields: int) -> int:
        """Return how many commands one takes: two within a millisecond take more."""
        return min(beat(**fields) for _ in range(9))

    assert few() == 6
    for key in (keys.leases, keys.presence, keys.worker(worker)):
        client.delete(key)
        beat()
        if key == keys.presence:  # alone it cannot be lost
            client.delete(keys.leases)
            beat()
        assert client.exists(key)
    assert client.hget(keys.worker(worker), "since") == b"0"
    assert client.ttl(keys.worker(worker)) > 0
    beat(unguarded=2)
    troubled_at = client.hget(keys.worker(worker), "troubled_at")
    assert few(unguarded=2) == 6
    assert troubled_at and client.hget(keys.worker(worker), "troubled_at") == troubled_at
