"""Messages that have to be looked up are looked up and claimed together, without the event loop (NEW-9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.transport import redis

from celery_poison import causes
from celery_poison.basics.parts import Caught, Hold
from celery_poison.errors import LedgerUnavailable, StaleDelivery
from celery_poison.headers import identify
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Ended, Start
from celery_poison.policy import Policy
from celery_poison.settings import Settings
from celery_poison.testing import wait_until
from celery_poison.worker.admission import Admission
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.lease import Lease
from celery_poison.worker.threads import Background
from tests.sites import on_site

COUNT = 200


class Counted(Ledger):
    """A ledger that counts its round trips."""

    trips = 0

    def __init__(self, client: Any, keys: Keys) -> None:
        super().__init__(client, keys)
        call_each = self.scripts.call_each

        def counted(name: str, calls: Any, **common: Any) -> Any:
            type(self).trips += 1
            return call_each(name, calls, **common)

        self.scripts.call_each = counted  # type: ignore[method-assign]


#: Of a transport that says of each delivery whether it came before; nothing is asked of it here.
CHANNEL = object.__new__(redis.Channel)


class Site:
    """As much of a worker as messages meet on their way in, with a real ledger."""

    def __init__(
        self,
        redis_url: str,
        settings: Settings | None = None,
        policies: Any = None,
        holds: Any = (),
        **checks: Any,
    ) -> None:
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
            "settings": settings or Settings(),
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
                write=lambda message, mid, start, cause, reason, **_: self.kept.append(
                    f"{mid} {cause} {reason}"
                )
            ),
            "handler": self.handled.append,
            "refuse": lambda message, error: self.refused.append(message),
            "holds": holds,
            "policies": policies or {"t": (Policy(), True)},
            "outcomes": None,
            "lease": Lease(10.0),
            "broadcasts": lambda message: False,
        }
        self.inflight = parts["inflight"]
        self.admission = on_site(Admission, **parts)

    def delivery_info(self, redelivered: bool) -> Any:
        return {"routing_key": "q", "redelivered": redelivered}

    def receive(self, number: int, *, redelivered: bool, **headers: Any) -> None:
        self.admission(
            SimpleNamespace(
                headers={"id": f"i{number}", "task": "t", "poison_mid": f"m{number}", **headers},
                channel=CHANNEL,
                delivery_info=self.delivery_info(redelivered),
                queue_name="q",
                content_type="application/json",
                content_encoding="utf-8",
                delivery_tag=number,
                body=b"[[], {}, {}]",
                ack=lambda: None,
            )
        )


@pytest.fixture
def site(redis_url: str) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(settings: Settings | None = None, **checks: Any) -> Site:
        made.append(Site(redis_url, settings, **checks))
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
    claimed = {mid for mid, _, _ in here.ledger.read.running()}
    assert claimed == {f"m{number}" for number in range(COUNT)}


def test_NEW_5_a_message_of_which_no_notes_can_be_made_is_let_in_only_where_its_task_is_not_guarded(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Site, "delivery_info", lambda *about: None)
    here = site()
    here.receive(1, redelivered=True)
    assert len(here.refused) == len(here.complaints) == 1 and not here.handled
    here.receive(2, redelivered=True, task="not guarded")
    assert len(here.refused) == 1 and len(here.handled) == 1
    observing = site(Settings(observe_only=True))
    observing.receive(3, redelivered=True)
    assert observing.handled and not observing.refused


def test_NEW_9_a_claim_whose_answer_was_lost_does_not_stand_in_its_own_way(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = site(Settings(fail_open=False))
    claim, lost = here.ledger.messages.claim_many, [LedgerUnavailable("the answer is lost")]

    def loses_the_first_answer(claims: Any) -> list[bool]:
        granted = claim(claims)
        _raise_each(lost)
        return granted

    monkeypatch.setattr(here.ledger.messages, "claim_many", loses_the_first_answer)
    here.receive(1, redelivered=True)
    here.background.start()
    wait_until(lambda: here.handled, timeout=20, what="it waits for itself")
    assert not lost and [mid for mid, _, _ in here.ledger.read.running()] == ["m1"]


def test_NEW_9_an_error_nobody_foresaw_lets_no_message_in_unjudged(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, errors = site(), [RuntimeError("?")]
    is_running = here.inflight.is_running
    monkeypatch.setattr(here.inflight, "is_running", lambda mid: _raise_each(errors) or is_running(mid))
    here.receive(1, redelivered=True)
    here.background.start()
    wait_until(lambda: here.handled, timeout=60, what="it is judged again")
    assert not errors and [mid for mid, _, _ in here.ledger.read.running()] == ["m1"], "it is claimed"


def test_EMS_8_a_delivery_that_lost_its_message_while_it_was_judged_is_judged_again(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = site(policies={"t": (Policy(max_payload_bytes=1), True)})
    write, errors = here.admission.quarantine_writer.write, [StaleDelivery("it has a newer start")]
    monkeypatch.setattr(
        here.admission.quarantine_writer,
        "write",
        lambda *about, **more: _raise_each(errors) or write(*about, **more),
    )
    here.receive(1, redelivered=True)
    here.background.start()
    wait_until(lambda: here.kept, timeout=20, what="it was dropped, and not acknowledged")
    assert not errors and not here.complaints


def _raise_each(errors: list[Any]) -> None:
    if errors:
        raise errors.pop()


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
    for mid, tokens in ((equal, ("a.1", "a.2")), ("m1", ("a.3", "a.4"))):
        first, second = (Start.of(token, "w0@h/a", "i1", "t", queue="q") for token in tokens)
        assert here.ledger.parking.park(mid, b"", first, number=0, parcel=b"")
        assert here.ledger.messages.claim(mid, b"", second)
        here.ledger.client.hset(here.ledger.keys.done, second.token, Ended.DONE.value)
        parked = here.ledger.messages.look(mid, "i1", 1000).parked
        assert parked
        here.receive(1, redelivered=False, poison_mid=mid, poison_park=parked.number)
    here.background.start()
    wait_until(lambda: here.handled, what=lambda: f"one is let in: {here.complaints}")
    assert here.background.finish(60.0)
    (message,) = here.handled
    assert message.headers["poison_mid"].startswith(f"{equal}:"), (
        "as a message of its own; the other is a copy"
    )


class Looks(Hold):
    """A hold that looks into messages."""

    def looks_into(self, task: str) -> bool:
        return True


def test_NEW_27_what_was_delivered_before_is_not_read_for_a_hold_before_it_is_looked_up_and_marked(
    site: Callable[..., Site],
) -> None:
    marks: list[list[tuple[str, str]]] = []
    refreshed: list[bool] = []

    def catch(message: Any, task: str, *, as_of_now: bool = False) -> Caught:
        marks.append([*here.marks])
        refreshed.append(as_of_now)
        return Caught(causes.HELD, "hold 1: n=42", "")

    here = site(holds=[Looks()], catch=catch, concerns=lambda task: False)
    here.receive(1, redelivered=True)
    assert not marks, "its body may be what killed the worker"
    here.background.start()
    wait_until(lambda: here.kept, timeout=60, what="in quarantine")
    assert here.kept == ["m1 held hold 1: n=42"] and not here.handled and not here.complaints
    assert marks[0] == [("put", "m1")] and refreshed[0] is False
    here.receive(2, redelivered=False)
    assert len(marks) == 3, "a first delivery is read at once"


def test_NEW_27_a_body_above_the_limit_is_refused_unopened_whatever_holds_there_are(
    site: Callable[..., Site],
) -> None:
    here = site(
        holds=[Looks()],
        policies={"t": (Policy(max_payload_bytes=5), True)},
        catch=lambda *about, **how: pytest.fail("it was read"),
        concerns=lambda task: False,
    )
    here.receive(1, redelivered=False)
    here.background.start()
    wait_until(lambda: here.kept, timeout=60, what="in quarantine")
    assert here.kept[0].startswith("m1 payload") and not here.handled and not here.complaints


def test_NEW_27_holds_are_refreshed_once_for_all_that_is_judged_together(site: Callable[..., Site]) -> None:
    refreshed: list[bool] = []

    def catch(message: Any, task: str, *, as_of_now: bool = False) -> Caught:
        refreshed.append(as_of_now)
        return Caught(causes.HELD, "hold 1: n=42", "")

    here = site(holds=[Looks()], catch=catch, concerns=lambda task: False)
    for number in range(20):
        here.receive(number, redelivered=False)
    here.background.start()
    wait_until(lambda: len(here.kept) == 20, timeout=60, what="in quarantine")
    assert refreshed.count(True) == 1
