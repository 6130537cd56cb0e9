"""What lies unacknowledged under the name of a worker that nobody knows any more goes back (NEW-9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from celery import Celery

from celery_poison.fleet.recovery import Recovery
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Ended, Start
from tests.broker.kit import Site


@pytest.fixture
def site(new_redis_url: Callable[[], str]) -> Iterator[Site]:
    site = Site(new_redis_url())
    yield site
    site.close()


@pytest.fixture
def ledger(new_redis_url: Callable[[], str]) -> Iterator[Ledger]:
    with open_redis(new_redis_url()) as client:
        yield Ledger(client, Keys("ns"))


@pytest.fixture
def recovery(site: Site, ledger: Ledger) -> Recovery:
    app: Celery = site.app
    return Recovery(app, ledger, lambda *_: None)


def _received(site: Site, name: str, *, goes: bool = True) -> str:
    """The boot id of a worker that has received one message."""
    site.send(name)
    receiver = site.receiver()
    receiver.receive(1)
    if goes:
        receiver.die()
    else:
        receiver.consumer.cancel()
    return receiver.boot_id


def _waiting(site: Site) -> list[str]:
    return [message["headers"]["poison_mid"] for message in site.waiting().get("a", [])]


def test_NEW_9_what_lies_under_an_unknown_worker_is_put_back_at_the_second_sweep(
    site: Site, recovery: Recovery
) -> None:
    _received(site, "lost")
    recovery.sweep_unacknowledged()
    assert not _waiting(site), "its worker may be about to say that it lives"
    recovery.sweep_unacknowledged()
    assert _waiting(site) == ["mlost"] and not site.entries() and not site.scores()
    assert site.waiting()["a"][0]["headers"]["redelivered"]


def test_NEW_9_what_lies_under_a_living_worker_or_one_that_is_being_recovered_from_is_left_alone(
    site: Site, ledger: Ledger, recovery: Recovery
) -> None:
    living = _received(site, "living", goes=False)
    ledger.fleet.beat(f"w1@h/{living}", {"node": "w1@h"}, first=True)
    dying = _received(site, "dying")
    ledger.fleet.beat(f"w2@h/{dying}", {"node": "w2@h"}, first=True)
    for _ in range(3):
        recovery.sweep_unacknowledged()
    assert len(site.entries()) == 2 and not _waiting(site)
    ledger.fleet.retire(f"w2@h/{dying}")
    recovery.sweep_unacknowledged()
    recovery.sweep_unacknowledged()
    assert _waiting(site) == ["mdying"] and len(site.entries()) == 1


def test_NEW_9_a_worker_that_was_unknown_once_and_says_that_it_lives_keeps_its_messages(
    site: Site, ledger: Ledger, recovery: Recovery
) -> None:
    boot_id = _received(site, "kept", goes=False)
    recovery.sweep_unacknowledged()
    ledger.fleet.beat(f"w1@h/{boot_id}", {"node": "w1@h"}, first=True)
    recovery.sweep_unacknowledged()
    assert len(site.entries()) == 1


def test_NEW_9_messages_of_plain_kombu_are_left_to_it(site: Site, recovery: Recovery) -> None:
    site.send(0)
    plain = site.receiver(boot_id="")
    plain.receive(1)
    plain.consumer.cancel()
    for _ in range(3):
        recovery.sweep_unacknowledged()
    assert len(site.entries()) == 1


def test_NEW_9_of_an_unknown_worker_only_the_ends_stay_on_record_whose_message_comes_back(
    site: Site, ledger: Ledger, recovery: Recovery
) -> None:
    site.send("acknowledged")
    site.send("old")
    site.send("held")
    receiver = site.receiver()
    acknowledged, old, held = receiver.receive(3)
    for message in (acknowledged, old, held):
        mid = message.headers["poison_mid"]
        worker = f"never-on-record@x/{receiver.boot_id}"
        at_ms = 1 if mid == "mold" else ledger.read.now_ms()
        start = Start("R", f"{receiver.boot_id}.{mid}", worker, 1, at_ms, 1, 0, mid, "t", "a", 2, 5, 10, 1)
        ledger.messages.claim(mid, b"", start)
        ledger.client.hset(ledger.keys.done, start.token, Ended.DONE.value)
    acknowledged.ack()
    old.ack()
    receiver.die()
    fence, _ = ledger.fleet.lead("w/1", 10_000) or (0, False)
    recovery.sweep_orphans(0.0, fence)
    assert len([*ledger.read.running()]) == 3, "it may be about to say that it lives"
    recovery.sweep_orphans(0.0, fence)
    left = {mid for mid, _, _ in ledger.read.running()}
    assert left == {"mheld", "mold"}, "a copy is recognised by that; who has put back an old one is not known"
    assert _waiting(site) == ["mheld"]
