"""The visibility timeout: renewed for what is held, and no reason to take it from whoever lives (TP1-8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import time

import pytest

from celery_poison.broker.redis import unacked
from celery_poison.broker.renewal import Renewal
from tests.broker.kit import Receiver, Site, new_boot_id

NewSite = Callable[..., Site]

#: Every sweep looks, and a message is stale after a second.
EAGER = {"visibility_timeout": 1, "unacked_restore_throttle": 1}


def _renewal(receiver: Receiver, interval: float = 3.0) -> Renewal:
    def complain(error: Exception) -> None:
        raise error

    return Renewal(receiver.kind.books, interval, complain)


@contextmanager
def _renewing(receiver: Receiver) -> Iterator[None]:
    """Renew as its thread does, until the end of the test."""
    renewal, enough = _renewal(receiver), Event()

    def work() -> None:
        while not enough.wait(renewal.interval):
            renewal.round()

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def _age(site: Site, tag: str, seconds: float = 3600.0) -> None:
    site.raw.zadd(site.index, {tag: time() - seconds})


@pytest.mark.parametrize("options", [{}, {"global_keyprefix": "shop:", "unacked_index_key": "mine"}])
def test_TP1_8_what_is_renewed_is_never_given_to_a_second_worker_of_plain_kombu(
    new_site: NewSite, options: dict[str, str]
) -> None:
    site = new_site(**EAGER, **options)
    site.send("live")
    first = site.receiver()
    (live,) = first.receive(1)
    (begun,) = site.scores().values()
    first.consumer.cancel()
    second = site.receiver(boot_id="")
    with _renewing(first):
        for n in range(3):
            # A message that nobody renews comes back from a sweep that would have taken the live one too.
            lost = site.receiver()
            site.send(f"lost{n}")
            lost.receive(1)
            lost.die()
            second.drain(lambda n=n: f"lost{n}" in second.names())
            [message.ack() for message in second.messages if not message.acknowledged]
        assert site.scores()[live.delivery_tag] > begun + 3 * 0.9, "renewed beyond its timeout"
        assert sorted(second.names()) == ["lost0", "lost1", "lost2"]
        live.ack()
    assert not site.entries() and not site.scores(), "renewing revives nothing"


def test_TP1_8_without_renewal_it_would_be_given_away(new_site: NewSite) -> None:
    site = new_site(**EAGER)
    site.send("live")
    first = site.receiver()
    first.receive(1)
    first.consumer.cancel()
    site.receiver(boot_id="").receive(1)


@pytest.mark.parametrize(
    ("alive", "restored"), [(True, False), (None, False), (False, True), ("not set", False)]
)
def test_TP1_8_our_sweep_takes_a_message_only_from_a_worker_that_is_known_to_be_gone(
    new_site: NewSite, alive: object, restored: bool
) -> None:
    site = new_site(**EAGER)
    site.send("owned")
    asked: list[str] = []

    def owner_is_alive(boot_id: str) -> object:
        asked.append(boot_id)
        return alive

    owner = site.receiver(boot_id=f"{new_boot_id()}r2")
    (message,) = owner.receive(1)
    owner.die()
    _age(site, message.delivery_tag)
    site.raw.zadd(site.index, {"0" * 16 + "-1": 1.0, "0" * 16 + "-2": 2.0, str(new_boot_id()): 3.0})
    sweeper = site.receiver(owner_is_alive=None if alive == "not set" else owner_is_alive)
    sweeper.channel.qos.restore_visible()
    assert bool(site.waiting()) == restored
    assert bool(site.entries()) != restored
    if alive != "not set":
        assert sorted(asked) == sorted({owner.boot_id, "0" * 16}), "each owner is asked for once"
    if restored:
        (returned,) = site.waiting()["a"]
        assert returned["properties"]["delivery_tag"] not in ("", message.delivery_tag)
        assert returned["headers"]["redelivered"] is True and not site.scores()
        assert site.put_back(owner.boot_id).mids == {"mowned"}, "whoever recovers learns of it"


def test_TP1_8_our_sweep_leaves_what_is_not_stale_even_of_the_dead(new_site: NewSite) -> None:
    site = new_site()
    site.send(0)
    owner = site.receiver()
    owner.receive(1)
    owner.die()
    site.receiver(owner_is_alive=lambda _: False).channel.qos.restore_visible()
    assert len(site.entries()) == 1


def test_our_sweep_treats_messages_of_plain_kombu_as_kombu_does(new_site: NewSite) -> None:
    site = new_site(**EAGER)
    site.send("plain")
    plain = site.receiver(boot_id="")
    (message,) = plain.receive(1)
    plain.die()
    _age(site, message.delivery_tag)
    sweeper = site.receiver()
    sweeper.receive(1)
    assert sweeper.names() == ["plain"]


def test_our_sweep_keeps_to_kombus_limit_throttle_and_mutex(new_site: NewSite) -> None:
    site = new_site(visibility_timeout=1, unacked_mutex_key="mine")
    for n in range(6):
        site.send(n)
    owner = site.receiver()
    for message in owner.receive(6):
        _age(site, message.delivery_tag, 100 - message.payload)
    owner.die()
    site.send("alive")
    alive = site.receiver()
    (newest,) = alive.receive(1)
    _age(site, newest.delivery_tag, 50)
    qos = site.receiver(owner_is_alive=lambda boot_id: boot_id == alive.boot_id).channel.qos
    site.raw.set("mine", "held by another")
    qos.restore_visible(num=2, interval=3)
    assert not site.waiting(), "somebody else is sweeping"
    site.raw.delete("mine")
    qos.restore_visible(num=2, interval=3)
    qos.restore_visible(num=2, interval=3)
    assert not site.waiting(), "throttled"
    qos.restore_visible(num=2, interval=3)
    assert [m["headers"]["poison_mid"] for m in site.waiting()["a"]] == ["m4", "m5"]
    qos.restore_visible(num=None, interval=1)
    assert [m["headers"]["poison_mid"] for m in site.waiting()["a"]] == [f"m{n}" for n in range(6)]
    assert list(site.entries()) == [newest.delivery_tag]


def test_our_sweep_gives_back_what_this_worker_registered_and_never_received(new_site: NewSite) -> None:
    site = new_site(visibility_timeout=1)
    site.send("lost", "held")
    receiver = site.receiver()
    lost, held = receiver.receive(2)
    receiver.consumer.cancel()
    receiver.channel.book.nothing_came(lost.delivery_tag)
    for message in (lost, held):
        _age(site, message.delivery_tag)
    receiver.channel.qos._vrestore_count = 0  # else it is somebody else's turn
    receiver.channel.qos.restore_visible()
    assert [m["headers"]["poison_mid"] for m in site.waiting()["a"]] == ["mlost"]
    assert list(site.entries()) == [held.delivery_tag]


def test_renewal_covers_thousands_and_leaves_out_what_was_acknowledged(site: Site) -> None:
    site.send(*range(2500))
    receiver = site.receiver()
    messages = receiver.receive(2500)
    for message in messages[:100]:
        message.ack()
    for tag in list(site.scores()):
        _age(site, tag)
    before = time()
    _renewal(receiver).round()
    assert len(receiver.channel.book.tags()) == len(site.scores()) == 2400
    assert min(site.scores().values()) >= before - 1


def test_EMS_8_renewal_revives_nothing_that_was_put_back(site: Site) -> None:
    site.send(0)
    zombie = site.receiver()
    (message,) = zombie.receive(1)
    site.put_back(zombie.boot_id)
    assert zombie.channel.book.tags() == {message.delivery_tag}, "it does not know yet"
    _renewal(zombie).round()
    assert site.keys() == {"a"}


@pytest.mark.parametrize("wrong", [-7200.0, +7200.0])
def test_a_clock_that_is_behind_gives_nothing_away(
    site: Site, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    site.send(0)
    receiver = site.receiver()
    (message,) = receiver.receive(1)
    monkeypatch.setattr(unacked, "time", lambda: time() + wrong)
    _renewal(receiver).round()
    assert site.scores()[message.delivery_tag] >= time() + max(0.0, wrong) - 10


def test_the_interval_follows_the_shortest_visibility_timeout(new_site: NewSite) -> None:
    brief, long = new_site(visibility_timeout=1), new_site()
    for site, interval in ((brief, 0.25), (long, 3.0)):
        assert _renewal(site.receiver()).interval == interval


def test_NEW_9_what_a_closed_channel_held_is_put_back_and_not_renewed(site: Site) -> None:
    site.send(0)
    receiver = site.receiver()
    receiver.receive(1)
    told: list[Exception] = []
    receiver.connection.close()
    Renewal(receiver.kind.books, 3.0, told.append).round()
    assert not told and not site.entries()
    assert site.everything() == ["m0"]


@pytest.mark.parametrize(("error", "is_told"), [(ConnectionResetError("away"), False), (KeyError("?"), True)])
def test_NEW_9_a_round_that_fails_keeps_the_next_step_from_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception, is_told: bool
) -> None:
    """That Redis is away has a log line of its own."""
    site.send(0)
    receiver = site.receiver()
    receiver.receive(1)
    told: list[Exception] = []
    renewed: list[bool] = []

    def fails() -> None:
        raise error

    monkeypatch.setattr(receiver.channel.book, "flush", fails)
    monkeypatch.setattr(receiver.channel.book, "renew", lambda: renewed.append(True))
    Renewal(receiver.kind.books, 3.0, told.append).round()
    assert (told == [error]) is is_told
    assert renewed == [True]
