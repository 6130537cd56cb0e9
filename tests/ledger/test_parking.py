"""The scripts that park a message, and those that end one that is parked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.views import Views
from celery_poison.model import Guilt, ParkingState, Start

MID = "m1"


def start_of(token: str, phase: str = "R", deliveries: int = 1) -> Start:
    return Start(
        phase, token, "node/boot", 1, 1_763_000_000_123, deliveries, 0, "id/ü", "t", "q", 2, 5, 10, 1
    )


RUNNING, COPY = start_of("t1"), start_of("t2", "C")


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        yield Ledger(client, Keys("parking"))


@pytest.fixture
def queries(ledger: Ledger) -> Views:
    return ledger.read


def _runs(ledger: Ledger, start: Start = RUNNING) -> None:
    ledger.client.hset(ledger.keys.running, MID, start.encode())


def _finishes(ledger: Ledger, start: Start = RUNNING) -> None:
    ledger.client.hset(ledger.keys.done, start.token, "D")


def _park(ledger: Ledger, number: int = 0, parcel: bytes = b"\x00original") -> bool:
    return ledger.parking.park(MID, RUNNING.encode(), COPY, number=number, parcel=parcel)


def _parked(ledger: Ledger) -> tuple[ParkingState, int]:
    parked = ledger.messages.look(MID, "id/ü", 1000).parked
    assert parked is not None
    return parked.state, parked.number


def _events(queries: Views) -> list[str]:
    return [entry["event"] for entry in queries.journal()]


def test_TP1_8_a_copy_of_a_running_message_is_kept_byte_for_byte(ledger: Ledger, queries: Views) -> None:
    _runs(ledger)
    assert _park(ledger)
    ((mid, parked, _),) = queries.parked()
    assert (mid, parked.state, parked.start) == (MID, "waiting", COPY)
    assert queries.parcel(MID) == b"\x00original"
    assert queries.totals()["parked"] == 1
    (record,) = queries.waiting()
    assert (record.mid, record.id, record.task, record.state) == (MID, "id/ü", "t", "TBDL")
    (entry,) = queries.journal()
    assert (entry["event"], entry["token"], entry["note"]) == ("parked", "t2", "t1")


def test_NEW_1_a_suspect_is_kept_on_its_way_to_its_trial_unless_it_has_started(
    ledger: Ledger, queries: Views
) -> None:
    suspect = COPY._replace(alone=1)

    def park(number: int = 0) -> bool:
        return ledger.parking.park(MID, b"", suspect, number=number, parcel=b"\x00original")

    _runs(ledger)
    assert not park(), "it runs by now"
    ledger.client.hdel(ledger.keys.running, MID)
    assert park() and park(), "and once only"
    ((_, parked, _),) = queries.parked()
    assert (parked.state, parked.start) == ("waiting", suspect)
    assert queries.parcel(MID) == b"\x00original"
    (record,) = queries.waiting()
    assert record.reason == "parked on its way to its trial"
    (entry,) = queries.journal()
    assert (entry["event"], entry["token"], entry["note"]) == ("parked", "t2", "for its trial")
    assert ledger.parking.unpark(MID, parked.number)
    assert park(parked.number), "the copy strayed, and is sent once more"
    assert not park(parked.number), "void since then"


def test_NEW_30_what_a_parking_waited_for_holds_up_no_later_one_and_the_longer_pause_counts(
    ledger: Ledger, queries: Views
) -> None:
    def due(pause: float) -> int | None:
        assert ledger.parking.park(MID, b"", COPY, number=0, parcel=b"x", pause=pause)
        return queries.awaited_by([MID])[1].get(MID)

    first = due(3600)
    assert first and due(5) == first, "its acknowledgement was lost, and the copy ran before it was due"
    later = due(7200)
    assert later and later > first
    ((_, parked, raw),) = queries.parked()
    ledger.client.hset(ledger.keys.parked, MID, raw.replace(b"waiting", b"kept"))
    assert due(0) is None, "a person has released it since"
    assert parked.state == "waiting"


def test_TP1_8_nothing_is_parked_behind_a_start_that_has_ended_or_changed(
    ledger: Ledger, queries: Views
) -> None:
    assert not _park(ledger), "gone"
    _runs(ledger, start_of("t9"))
    assert not _park(ledger), "another one"
    _runs(ledger)
    _finishes(ledger)
    assert not _park(ledger), "finished"
    assert not [*queries.parked()] and not _events(queries)


def test_TP1_8_one_copy_is_enough(ledger: Ledger, queries: Views) -> None:
    _runs(ledger)
    assert _park(ledger)
    before = _parked(ledger)
    assert _park(ledger, parcel=b"another"), "it may be acknowledged"
    assert _parked(ledger) == before and queries.parcel(MID) == b"\x00original"
    assert _events(queries) == ["parked"]


def test_TP1_8_each_parking_has_a_higher_number_and_a_copy_of_an_earlier_one_is_not_parked(
    ledger: Ledger,
) -> None:
    _runs(ledger)
    _park(ledger)
    _, first = _parked(ledger)
    assert ledger.parking.unpark(MID, first)
    assert _park(ledger, number=first)
    state, second = _parked(ledger)
    assert (state, second > first) == ("waiting", True)
    assert not _park(ledger, number=first), "look again: it is void"
    assert _park(ledger, number=second), "published, and its monitor has not said so yet"
    state, third = _parked(ledger)
    assert (state, third > second) == ("waiting", True)
    assert not ledger.parking.unpark(MID, second), "too late: it waits again"
    assert _parked(ledger) == ("waiting", third)


def test_TP1_8_the_number_grows_though_the_clock_of_Redis_goes_back(ledger: Ledger) -> None:
    _runs(ledger)
    future = 10**13
    raw = f'["published",{future},{COPY.encode().decode()}]'
    ledger.client.hset(ledger.keys.parked, MID, raw)
    assert _park(ledger)
    assert _parked(ledger) == ("waiting", future + 1)


def test_TP1_8_only_the_parking_that_was_published_is_noted_as_published(
    ledger: Ledger, queries: Views
) -> None:
    _runs(ledger)
    _park(ledger)
    _, number = _parked(ledger)
    assert not ledger.parking.unpark(MID, number - 1)
    assert queries.totals()["parked"] == 1
    assert ledger.parking.unpark(MID, number)
    assert not ledger.parking.unpark(MID, number), "once"
    assert _parked(ledger) == ("published", number)
    assert queries.parcel(MID) is None and queries.totals()["parked"] == 0
    assert _events(queries) == ["parked", "unparked"]


def _settle(ledger: Ledger) -> None:
    _finishes(ledger)
    assert ledger.messages.clean_up([("other", "t0"), (MID, "t1")]) == [0]


def _settle_without_entry(ledger: Ledger) -> None:
    ledger.messages.crash(MID, RUNNING, cause="worker_lost", shared=True)
    ledger.messages.clean_up([(MID, "t1")])


def _acquit(ledger: Ledger) -> None:
    _finishes(ledger)
    ledger.messages.acquit(MID, RUNNING, Guilt.CLEARED)


def _acquit_without_entry(ledger: Ledger) -> None:
    """Its worker was cut off and taken for dead; nobody knows whether the broker hears of its end."""
    ledger.messages.interrupt(MID, RUNNING, cause="worker_lost")
    ledger.messages.acquit(MID, RUNNING, Guilt.CLEARED, copy=True)


def _duplicate(ledger: Ledger) -> None:
    _finishes(ledger)
    ledger.messages.duplicate(MID, start_of("t3", "C"), reason="x")


ENDS = pytest.mark.parametrize(
    "end", [_settle, _settle_without_entry, _acquit, _acquit_without_entry, _duplicate]
)


@ENDS
@pytest.mark.parametrize("published", [False, True])
def test_TP1_8_whatever_ends_a_message_ends_its_parking_in_the_same_step(
    ledger: Ledger, queries: Views, end: Callable[[Ledger], None], published: bool
) -> None:
    _runs(ledger)
    _park(ledger)
    _, number = _parked(ledger)
    if published:
        ledger.parking.unpark(MID, number)
    end(ledger)
    state, last = _parked(ledger)
    assert (state, last > number) == ("finished", True), "so that late copies are told"
    assert queries.parcel(MID) is None and not ledger.parking.unpark(MID, number)
    assert not [*queries.running()]
    told = [e for e in queries.journal() if e["event"] == "duplicate" and e["token"] == COPY.token]
    assert len(told) == (not published), "a copy that was published is told when it is dropped"


def test_TP1_8_quarantine_keeps_the_one_original(ledger: Ledger, queries: Views) -> None:
    _runs(ledger)
    _park(ledger)
    _, number = _parked(ledger)
    ledger.quarantine.store(MID, RUNNING, cause="requested", reason="x", fields={"body": b"x"})
    state, last = _parked(ledger)
    assert (state, last > number) == ("kept", True)
    assert queries.parcel(MID) is None
    ledger.messages.clean_up([(MID, "t1")])
    assert _parked(ledger) == ("kept", last), "a release is no copy of a finished message"


@pytest.mark.parametrize("by", ["crash", "interrupt", "rollback"])
def test_TP1_8_what_came_to_grief_stays_parked(ledger: Ledger, queries: Views, by: str) -> None:
    _runs(ledger)
    _park(ledger)
    before = _parked(ledger)
    arguments = {"cause": "x"} | ({"shared": False} if by == "crash" else {})
    getattr(ledger.messages, by)(MID, RUNNING, **arguments)
    assert _parked(ledger) == before and queries.parcel(MID)


def test_EMS_8_a_start_that_lost_its_message_does_not_end_the_parking(ledger: Ledger, queries: Views) -> None:
    _runs(ledger)
    _park(ledger)
    before = _parked(ledger)
    ledger.messages.clean_up([(MID, "old")])
    ledger.messages.acquit(MID, start_of("old"), Guilt.CLEARED)
    ledger.messages.duplicate(MID, start_of("t3", "C"), reason="x")
    assert _parked(ledger) == before and queries.parcel(MID)


def test_a_parking_is_forgotten_only_as_it_was_read(ledger: Ledger, queries: Views) -> None:
    _runs(ledger)
    _park(ledger)
    ((_, _, raw),) = queries.parked()
    ledger.parking.unpark(MID, _parked(ledger)[1])
    ledger.parking.forget(MID, raw)
    ((_, _, raw),) = queries.parked()
    ledger.parking.forget(MID, raw)
    assert not [*queries.parked()]


def test_a_claim_stands_in_the_way_only_while_its_worker_lives(ledger: Ledger) -> None:
    _runs(ledger, COPY)
    assert not ledger.messages.look(MID, "id", 1000).is_in_the_way, "nobody knows that worker"
    ledger.fleet.beat(COPY.worker, {"node": "n"}, first=True)
    assert ledger.messages.look(MID, "id", 60_000).is_in_the_way
    assert not ledger.messages.look(MID, "id", 0).is_in_the_way, "it is silent"
    _runs(ledger)
    assert ledger.messages.look(MID, "id", 0).is_in_the_way, "it ran: its monitor decides when it is over"
