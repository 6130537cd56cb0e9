"""Publisher and relay die at any one of their commands to Redis: what is stored is sent, in its order."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import count

import pytest

from celery_poison.extensions.outbox import relay
from celery_poison.headers import PARK
from tests.fleet.forked import DIED, Forked
from tests.producer.kit import Shop

#: Seconds; so that what a dead relay had taken is due again at once.
SHORT_LEASE = 0.02


def test_TP1_1_a_publisher_killed_at_any_command_has_stored_its_message_once_or_not_at_all(
    new_shop: Callable[..., Shop],
) -> None:
    for number in count(1):
        shop = new_shop()
        publisher = Forked(lambda: shop.charge(7), number)  # noqa: B023 - done before the next
        publisher.wait()
        stored = shop.waiting()
        shop.relay()
        assert shop.queued() == stored
        if publisher.status != DIED:
            assert stored == [7], "whoever was told that it is stored can rely on it"
            break
        assert stored in ([], [7])
    assert number > 1, "it was killed at every command"


@pytest.mark.parametrize("broker", ["the ledger's Redis", "another Redis"])
def test_TP1_1_a_relay_killed_at_any_command_loses_nothing_and_keeps_the_order(
    broker: str,
    new_shop: Callable[..., Shop],
    new_redis_url: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "LEASE", SHORT_LEASE)
    for number in count(1):
        shop = new_shop(new_redis_url() if broker == "another Redis" else "")
        shop.charge(1, 2, 3)
        victim = Forked(shop.relay, number)
        victim.wait()
        while shop.waiting():
            shop.relay()
        arrived = _copies(shop)
        orders = [order for order, _ in arrived]
        if broker == "another Redis":  # at least once, and a second copy says that it may be one
            assert [order for order, note in arrived if not note] in ([1, 2, 3], []), f"command {number}"
            assert sorted({*orders}) == [1, 2, 3]
            assert orders in ([1, 2, 3], [1, 2, 3, 1, 2, 3]), f"command {number}"
        else:
            assert orders == [1, 2, 3], f"killed before command {number}"
        if victim.status != DIED:
            break
    assert number > 6, "it was killed at every command"


def _copies(shop: Shop) -> list[tuple[int, bool]]:
    """First argument of every message in the queue, oldest first, and whether it is noted as a copy."""
    found = []
    client = shop.app.connection_for_read().channel().client
    while raw := client.rpop("celery"):
        message = json.loads(raw)
        order = json.loads(base64.b64decode(message["body"]))[0][0]
        found.append((order, PARK in message["headers"]))
    return found
