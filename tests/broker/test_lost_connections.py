"""A connection that was lost is closed without an error, whatever fails on the way (NEW-9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest

from celery_poison.testing import RedisServer
from tests.broker.kit import Process, Receiver, Site
from tests.harness.proxy import TcpProxy

NewSite = Callable[..., Site]


@pytest.fixture
def line(redis_server: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", redis_server.port) as line:
        yield line


@pytest.fixture
def far(site: Site, new_site: NewSite, line: TcpProxy) -> Site:
    """The broker, by a line that may be cut."""
    return new_site(line.url(site.url))


def _consume_broadcast(receiver: Receiver) -> Any:
    """A channel as those of Celery's remote control: its queue ends with it, which Redis must be told."""
    channel = receiver.connection.channel()
    exchange = kombu.Exchange("celery.pidbox", type="fanout")
    queue = kombu.Queue("w1.pidbox", exchange, auto_delete=True)
    kombu.Consumer(channel, [queue], no_ack=True, on_message=print).consume()
    return channel


def _mids(site: Site) -> list[str]:
    return [message["headers"]["poison_mid"] for message in site.waiting().get("a", [])]


@pytest.mark.parametrize("order", ["before", "after"])
def test_NEW_9_a_channel_that_cannot_be_closed_keeps_no_other_from_giving_back(
    site: Site, far: Site, line: TcpProxy, order: str
) -> None:
    """kombu stops at the first that fails; those behind it lost their connection and knew of nothing."""
    site.send(0, 1)
    receiver = far.receiver()
    channels = receiver.connection.connection.channels
    broadcast = _consume_broadcast(receiver)
    channels.sort(key=lambda channel: (channel is broadcast) == (order == "after"))
    receiver.receive(2)
    line.cut()
    receiver.connection.close()
    receiver.channel.close()
    broadcast.close()
    assert receiver.channel.closed and broadcast.closed
    line.heal()
    receiver.channel.book.flush()
    assert _mids(site) == ["m0", "m1"]


def test_NEW_9_a_lost_connection_is_collected_and_its_channels_closed_without_an_attribute_error(
    site: Site, far: Site, line: TcpProxy
) -> None:
    """As Celery does it: `'NoneType' object has no attribute 'hostname'` ended the worker."""
    site.send(0)
    receiver = far.receiver()
    broadcast = _consume_broadcast(receiver)
    receiver.receive(1)
    line.cut()
    receiver.connection.collect()
    for channel in (receiver.channel, broadcast):
        channel.close()
        channel.qos.restore_unacked_once()
    line.heal()
    receiver.channel.book.flush()
    assert _mids(site) == ["m0"] and not site.entries()


def test_NEW_9_where_the_client_is_gone_already_a_channel_closes_all_the_same(site: Site) -> None:
    site.send(0)
    receiver = site.receiver()
    receiver.receive(1)
    transport = receiver.connection.connection if hasattr(receiver.connection, "connection") else None
    assert transport is not None
    client, transport.client = transport.client, None
    try:
        receiver.channel.close()
    finally:
        transport.client = client
    assert receiver.channel.closed and _mids(site) == ["m0"]


def test_NEW_9_a_channel_that_looked_for_a_message_and_got_none_closes_when_its_client_is_gone(
    far: Site, line: TcpProxy
) -> None:
    receiver = far.receiver()
    channel = receiver.connection.channel()
    assert channel.basic_get("nothing") is None
    line.cut()
    receiver.connection.collect()
    channel.close()
    assert channel.closed


def test_NEW_9_what_came_by_a_lost_connection_may_not_begin_from_the_moment_of_the_loss(
    site: Site, far: Site, line: TcpProxy
) -> None:
    site.send(0)
    process = Process(far)
    receiver = process.connect()
    (message,) = receiver.receive(1)
    assert message.is_mine
    line.cut()
    receiver.connection.close()
    assert process.closed == [receiver.channel], "it was told of, once"
    assert not message.is_mine
