"""However much there is to recover, Redis is asked about many things at once: a network is no loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
from redis.connection import AbstractConnection

from celery_poison.fleet import parking
from celery_poison.fleet.aside import SideThread
from celery_poison.fleet.monitor import Monitor
from celery_poison.fleet.parking import Parking
from celery_poison.fleet.recovery import Recovery
from celery_poison.ledger import Ledger
from celery_poison.model import Ended, Start
from celery_poison.plugin import plugin_of
from tests.apps.harness import Fleet

MANY = 1_200


class Exchanges:
    count = 0


@contextmanager
def counted() -> Iterator[Exchanges]:
    """Count how often somebody sends to Redis; a pipeline counts once."""
    seen, send = Exchanges(), AbstractConnection.send_packed_command

    def counting(*args: object, **kwargs: object) -> object:
        seen.count += 1
        return send(*args, **kwargs)  # type: ignore[arg-type]

    with mock.patch.object(AbstractConnection, "send_packed_command", counting):
        yield seen


@pytest.fixture
def ledger(fleet: Fleet) -> Ledger:
    return plugin_of(fleet.app).open_ledger()


def _begin(ledger: Ledger, worker: str, count: int, *, done: bool) -> list[tuple[str, Start]]:
    starts = []
    for n in range(count):
        start = Start("R", f"b.{n}", worker, 1, 1, 1, 0, f"id{n}", "fleet.healthy", "celery", 2, 5, 10, 1)
        ledger.messages.claim(f"m{n}", b"", start)
        if done:
            ledger.client.hset(ledger.keys.done, start.token, Ended.DONE.value)
        starts.append((f"m{n}", start))
    return starts


def test_EMS_6_what_a_dead_worker_had_finished_is_asked_for_many_at_once(
    fleet: Fleet, ledger: Ledger
) -> None:
    _begin(ledger, "w@x/b", MANY, done=True)
    recovery = Recovery(fleet.app, ledger, lambda *args: None)
    with counted() as exchanges:
        done = recovery.recover("w@x/b", "i", 1)
    assert (done.flagged, done.unfinished) == (0, 0)
    assert not [*ledger.read.running()], "what had finished is forgotten"
    assert exchanges.count < MANY / 10


def test_EMS_6_starts_of_nobody_are_asked_for_many_at_once(fleet: Fleet, ledger: Ledger) -> None:
    _begin(ledger, "nobody@x/b", MANY, done=True)
    recovery = Recovery(fleet.app, ledger, lambda *args: None)
    with counted() as exchanges:
        recovery.sweep_orphans(0.0, 1)
    assert len([*ledger.read.running()]) == MANY, "they are remembered, for copies that may come"
    assert exchanges.count < MANY / 10


def test_TP1_8_parked_messages_are_looked_at_many_at_once_and_past_ones_hardly_ever(
    fleet: Fleet, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    lot = Parking(fleet.app, ledger, plugin_of(fleet.app).settings)
    starts = _begin(ledger, "w@x/b", MANY, done=False)
    for mid, start in starts:
        assert ledger.parking.park(mid, start.encode(), start, number=0, parcel=b"x")
    lot.round()
    with counted() as exchanges:
        assert lot.round() == 0
    assert exchanges.count < MANY / 10
    ledger.messages.clean_up((mid, start.token) for mid, start in starts)
    with counted() as exchanges:
        assert lot.round() == 0
    assert exchanges.count == 1, "nothing is parked any more, and of what was only a memory is left"
    monkeypatch.setattr(parking, "REMEMBER_MS", -60_000)
    lot.forget_the_old()
    assert not [*ledger.read.parked()], "which ends too"


def test_TP1_8_what_was_published_and_whose_end_nobody_told_is_forgotten_a_week_later(
    fleet: Fleet, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    lot = Parking(fleet.app, ledger, plugin_of(fleet.app).settings)
    starts = _begin(ledger, "w@x/b", 2, done=False)
    for mid, start in starts:
        assert ledger.parking.park(mid, start.encode(), start, number=0, parcel=b"x")
    (published, number), (waiting, _) = [(mid, parked.number) for mid, parked, _ in ledger.read.parked()]
    assert ledger.parking.unpark(published, number)
    monkeypatch.setattr(parking, "REMEMBER_MS", -60_000)
    lot.forget_the_old()
    assert {mid for mid, _, _ in ledger.read.parked()} == {published, waiting}, "its copy may wait still"
    monkeypatch.setattr(parking, "REMEMBER_PUBLISHED_MS", -60_000)
    lot.forget_the_old()
    assert {mid for mid, _, _ in ledger.read.parked()} == {waiting}, "what is parked stays"


def test_an_idle_monitor_asks_twice_in_a_round_and_begins_nothing(
    fleet: Fleet, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(plugin_of(fleet.app).settings, activation_interval=600.0)
    begun: list[str] = []
    monkeypatch.setattr(SideThread, "do", lambda aside, work: begun.append(aside._name))
    monitor = Monitor(fleet.app, ledger, settings, lambda: ("w@x/b", ""), lambda *args: None)
    monitor.round()
    with counted() as exchanges:
        monitor.round()
    assert exchanges.count == 2, "for its lock, and for all that there may be to do"
    assert not {"poison-parking", "poison-outgoing"} & {*begun}, "neither has anything to do"
    ((mid, start),) = _begin(ledger, "w@x/b", 1, done=False)
    assert ledger.parking.park(mid, start.encode(), start, number=0, parcel=b"x")
    monitor.round()
    assert "poison-parking" in begun
