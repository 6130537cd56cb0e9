"""Messages that have to be looked up are looked up and claimed together, without the event loop (NEW-9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.headers import identify
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.policies import Paused
from celery_poison.ledger.queries import Queries
from celery_poison.model import Ended, Start
from celery_poison.policy import Policy
from celery_poison.settings import Settings
from celery_poison.testing import wait_until
from celery_poison.worker.admission import Admission
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.threads import Background
from tests.sites import on_site

COUNT = 200


class Counted(Ledger):
    """A ledger that counts its round trips."""

    trips = 0

    def call_each(self, name: str, calls: Any, **common: Any) -> Any:
        type(self).trips += 1
        return super().call_each(name, calls, **common)


class Site:
    """As much of a worker as messages meet on their way in, with a real ledger."""

    def __init__(self, redis_url: str, **checks: Callable[..., Any]) -> None:
        self.handled: list[Any] = []
        self.kept: list[str] = []
        self.refused: list[Any] = []
        self.marks: list[tuple[str, str]] = []
        self.complaints: list[Exception] = []
        self.ledger = Counted(open_redis(redis_url), Keys("ns"))
        self.background = Background(self.complaints.append)
        tokens = iter(range(10_000))
        parts: dict[str, Any] = {
            "loop": SimpleNamespace(call_in_loop=lambda call: call(), epoch=1),
            "settings": Settings(),
            "ledger": self.ledger,
            "background": self.background,
            "complain": self.complaints.append,
            "me": SimpleNamespace(next_token=lambda: f"b.{next(tokens)}", pid=1, worker="w1@h/b"),
            "resync": SimpleNamespace(
                heard_from=lambda run_id: None, window=SimpleNamespace(is_suspected=False, patience=0.0)
            ),
            "inflight": InFlight(),
            "checker": SimpleNamespace(
                **{"must_ask": lambda *about: False, "concerns": lambda task: bool(checks), **checks},
                refresh=lambda: False,
            ),
            "recorder": SimpleNamespace(
                mark=lambda mid, start: self.marks.append(("put", mid)),
                unmark=lambda mid: self.marks.append(("removed", mid)),
            ),
            "quarantine_writer": SimpleNamespace(
                write=lambda message, mid, start, cause, reason: self.kept.append(f"{mid} {cause} {reason}")
            ),
            "handler": self.handled.append,
            "refuse": lambda message, error: self.refused.append(message),
            "pauses": Paused(self.ledger),
            "policies": {"t": (Policy(), True)},
            "outcomes": None,
            "broadcasts": lambda message: False,
        }
        self.inflight = parts["inflight"]
        self.admission = on_site(Admission, **parts)

    def receive(self, number: int, *, redelivered: bool, **headers: Any) -> None:
        self.admission(
            SimpleNamespace(
                headers={"id": f"i{number}", "task": "t", "poison_mid": f"m{number}", **headers},
                delivery_info={"routing_key": "q", "redelivered": redelivered},
                queue_name="q",
                content_type="application/json",
                body=b"[[], {}, {}]",
                ack=lambda: None,
            )
        )


@pytest.fixture
def site(redis_url: str) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(**checks: Callable[..., Any]) -> Site:
        made.append(Site(redis_url, **checks))
        return made[-1]

    yield make
    for site in made:
        site.background.finish(5.0)
        site.ledger.client.close()


def test_NEW_9_two_hundred_redelivered_messages_cost_four_round_trips(site: Callable[..., Site]) -> None:
    here = site()
    before = Counted.trips
    for number in range(COUNT):
        here.receive(number, redelivered=True)
    here.background.start()
    wait_until(lambda: len(here.handled) == COUNT, timeout=60, what="all are let in")
    assert Counted.trips - before == 4 and not here.complaints
    claimed = {mid for mid, _, _ in Queries(here.ledger).running()}
    assert claimed == {f"m{number}" for number in range(COUNT)}


def test_TP1_8_of_two_copies_in_one_batch_one_is_let_in(site: Callable[..., Site]) -> None:
    here = site()
    here.receive(1, redelivered=True)
    here.receive(1, redelivered=True)
    here.receive(2, redelivered=True)
    here.inflight.of = lambda start, ended: (True, ended)
    here.background.start()
    wait_until(lambda: len(here.handled) == 2, timeout=60, what="one of each is let in")
    assert sorted(message.headers["id"] for message in here.handled) == ["i1", "i2"]


@pytest.mark.parametrize("reason", ["", "its fingerprint is blocked"])
@pytest.mark.parametrize("redelivered", [False, True])
def test_NEW_3_the_user_s_function_is_asked_in_the_background_under_an_admit_mark(
    reason: str, redelivered: bool, site: Callable[..., Site]
) -> None:
    threads: list[str] = []

    def asked(*about: Any, ask: bool) -> str:
        threads.append(threading.current_thread().name)
        assert here.marks[-1] == ("put", "m1") and ask
        return reason

    here = site(must_ask=lambda *about: True, reason=asked)
    here.receive(1, redelivered=redelivered)
    here.background.start()
    wait_until(lambda: here.handled or here.kept, timeout=60, what="let in, or kept")
    assert set(threads) == {"poison-background"}
    if reason:
        assert here.kept == [f"m1 blocked {reason}"] and not here.handled
    else:
        assert len(here.handled) == 1 and not here.kept


def test_a_parked_message_is_not_dropped_for_what_its_equal_did_meanwhile(site: Callable[..., Site]) -> None:
    """On RabbitMQ nothing tells two publishes without a stamp from each other, if they are equal."""
    here, equal = site(), identify({"id": "i1", "task": "t"}, "", b"")
    first, second = (Start.of(token, "w0@h/a", "i1", "t", queue="q") for token in ("a.1", "a.2"))
    for mid in (equal, "m1"):
        assert here.ledger.park(mid, b"", first, number=0, parcel=b"")
        assert here.ledger.claim(mid, b"", second)
        here.ledger.client.hset(here.ledger.keys.done, second.token, Ended.DONE.value)
        parked = here.ledger.look(mid, "i1", 1000).parked
        assert parked
        here.receive(1, redelivered=False, poison_mid=mid, poison_park=parked.number)
    here.background.start()
    wait_until(lambda: here.handled, what=lambda: f"one is let in: {here.complaints}")
    assert here.background.finish(60.0)
    (message,) = here.handled
    assert message.headers["poison_mid"].startswith(f"{equal}:"), (
        "as a message of its own; the other is a copy"
    )
