"""An idle worker waits on one list, and Redis says what comes into the others: it need not ask (NEW-31)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kombu.transport.redis
import pytest
from redis.exceptions import ConnectionError, NoPermissionError, ResponseError

from celery_poison.broker.books import Books
from celery_poison.broker.redis import tracking
from celery_poison.testing import RedisServer
from tests.broker.kit import Receiver, Site

NewSite = Callable[..., Site]


@pytest.fixture(autouse=True)
def waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait ends by itself: whatever comes late does not come at all."""
    monkeypatch.setattr(tracking, "PATIENCE", 3600.0)
    monkeypatch.setattr(kombu.transport.redis.Channel, "health_check_interval", 0)


def _calls(site: Site, *names: str) -> int:
    stats: Any = site.raw.info("commandstats")
    rows = {key.removeprefix("cmdstat_"): row["calls"] for key, row in stats.items()}
    return sum(rows.get(name, 0) for name in names)


def _is_waiting(receiver: Receiver) -> bool:
    ear = receiver.channel._tracking._ear
    return ear is not None and ear.wait is not None


def _go_idle(*receivers: Receiver) -> None:
    """Let each wait on its first list, told of the others."""
    for receiver in receivers:
        receiver.drain(lambda receiver=receiver: _is_waiting(receiver))


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_NEW_31_an_idle_worker_asks_for_no_list_and_is_told_of_each_other_queue_and_priority(
    new_site: NewSite, prefix: str
) -> None:
    site = new_site(**({"global_keyprefix": prefix} if prefix else {}))
    receiver = site.receiver(queues=["a", "b", "c"])
    _go_idle(receiver)
    asked = _calls(site, "blmove", "exists", "rpop", "evalsha")
    for _ in range(5):
        receiver.drain(lambda: True)
    assert _calls(site, "blmove", "exists", "rpop", "evalsha") == asked
    for number, (queue, priority) in enumerate((("b", 0), ("c", 6), ("a", 9), ("a", 0)), 1):
        _go_idle(receiver)
        site.send(f"m{number}", queue=queue, priority=priority)
        assert len(receiver.receive(number)) == number
    assert len(site.entries()) == 4, "each is registered"
    _go_idle(receiver)
    site.send("m5", queue="b")
    site.raw.flushdb()
    receiver.drain(lambda: _is_waiting(receiver))
    site.send("m6", queue="c")
    receiver.drain(lambda: receiver.names()[-1] == "m6")


def test_NEW_31_of_many_that_are_told_one_takes_it_and_all_hear_of_the_next(site: Site) -> None:
    receivers = [site.receiver(queues=["a", "b"]) for _ in range(3)]

    def received() -> list[str]:
        return sorted(name for receiver in receivers for name in receiver.names())

    def is_there(number: int) -> bool:
        for receiver in receivers:
            try:
                receiver.connection.drain_events(timeout=0.01)
            except TimeoutError:
                continue
        return len(received()) > number

    for number in range(4):
        _go_idle(*receivers)
        site.send(f"m{number}", queue="b")
        receivers[0].drain(lambda number=number: is_there(number))
    assert received() == [f"m{number}" for number in range(4)]
    assert len(site.entries()) == 4


@pytest.mark.parametrize("when", ["before it waits", "while the wait is on its way"])
def test_NEW_31_what_comes_between_the_last_look_and_the_wait_is_not_left(
    site: Site, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    receiver = site.receiver(queues=["a", "b"])
    _go_idle(receiver)
    channel, patience = receiver.channel, tracking.Tracking.patience
    sent: list[str] = []

    def send_first(self: Any, *args: Any) -> float | None:
        if when == "before it waits" and not sent:
            _send()
        seconds = patience(self, *args)
        if when != "before it waits" and not sent:
            _send()
        return seconds

    def _send() -> None:
        sent.append("m2")
        site.send("m2", queue="b")
        site.raw.client_list()  # Redis has said it by now

    site.send("m1", queue="a")
    receiver.receive(1)
    monkeypatch.setattr(tracking.Tracking, "patience", send_first)
    channel._tracking._empty = None  # told or not, the first one looks before it waits
    receiver.receive(2)
    assert receiver.names() == ["m1", "m2"]


def test_NEW_31_a_second_connection_that_is_lost_is_opened_anew_and_the_worker_looks_by_itself_meanwhile(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = site.receiver(queues=["a", "b"])
    _go_idle(receiver)
    ear = receiver.channel._tracking._ear
    monkeypatch.setattr(tracking, "PAUSE", 3600.0)
    site.raw.client_kill_filter(_id=ear.id)
    receiver.drain(lambda: ear.is_over)
    site.send("m1", queue="a")
    receiver.receive(1)
    receiver.drain(lambda: receiver.channel._tracking._ear is None)
    site.send("m2", queue="b")
    receiver.receive(2)
    receiver.channel._tracking._retry_at = 0.0
    _go_idle(receiver)
    site.send("m3", queue="b")
    receiver.receive(3)


def test_NEW_31_without_the_permission_it_asks_for_the_others_as_ever(
    redis_server: RedisServer, new_redis_url: Callable[[], str], new_site: NewSite
) -> None:
    user, rules = "shop", ("on", ">pw", "~*", "&*", "+@all", "-client")
    redis_server.client().execute_command("ACL", "SETUSER", user, *rules)
    try:
        site = new_site(new_redis_url().replace("redis://", f"redis://{user}:pw@"))
        receiver = site.receiver(queues=["a", "b"])
        receiver.drain(lambda: receiver.channel._tracking._is_refused)
        site.send("m1", queue="b")
        assert receiver.receive(1)
    finally:
        redis_server.client().acl_deluser(user)


def test_NEW_25_no_wait_is_so_long_that_an_idle_loop_seems_to_stand() -> None:
    """A sixth of poison_stuck_after, where that is little."""
    channel = SimpleNamespace(books=Books(longest_wait=0.5))
    assert tracking.Tracking(channel)._longest() == 0.5


@pytest.mark.parametrize(
    ("error", "is_for_good"),
    [
        (NoPermissionError("this user has no permissions to run the 'client|tracking' command"), True),
        (ResponseError("unknown subcommand 'TRACKING'. Try CLIENT HELP."), True),
        (ResponseError("unknown command 'CLIENT'"), True),
        (ResponseError("BUSY Redis is busy running a script."), False),
        (ResponseError("The client ID you want redirect to does not exist"), False),
        (ConnectionError("Connection closed by server."), False),
    ],
)
def test_NEW_31_only_what_Redis_will_say_again_ends_its_announcements(
    error: Exception, is_for_good: bool
) -> None:
    assert tracking._is_for_good(error) is is_for_good


def test_NEW_31_a_channel_that_is_closed_ends_its_wait_and_leaves_nothing_in_between(site: Site) -> None:
    receiver = site.receiver(queues=["a", "b"])
    _go_idle(receiver)
    site.send("m1", "m2", queue="a")
    site.send("m3", queue="b")
    receiver.connection.close()
    assert site.everything() == ["mm1", "mm2", "mm3"]
    assert not site.entries()
    assert len(site.waiting()["a"]) == 2
    other = site.receiver(queues=["c"])
    _go_idle(other)
    other.connection.close()
    assert not site.receivers[-1].channel._tracking._ear


def test_NEW_31_another_queue_that_is_to_be_consumed_is_asked_for_at_once(site: Site) -> None:
    receiver = site.receiver(queues=["a"])
    _go_idle(receiver)
    site.send("m1", queue="b")
    receiver.consumer.add_queue(kombu.Queue("b", exchange="", routing_key="b"))
    receiver.consumer.consume()
    receiver.receive(1)
    assert receiver.names() == ["m1"]
