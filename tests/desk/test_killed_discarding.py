"""A publisher that is killed while it makes room in a full queue (MSG-5)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from celery_poison.extensions.limits.discarder import Discarder
from celery_poison.quarantine import Quarantine
from tests.fleet.forked import DIED, Forked
from tests.producer.kit import Shop

LIMIT: dict[str, Any] = {"poison_max_messages": 2, "poison_max_messages_behavior": "discard_old"}


def _recorded(shop: Shop) -> list[int]:
    return sorted(int(record.arguments) for record in Quarantine(shop.app).list(state="FAIL"))


def test_MSG_5_a_publisher_killed_at_any_command_beside_two_databases_leaves_each_message_in_one_place(
    new_redis_url: Callable[[], str],
) -> None:
    for number in count(1):
        shop = Shop(new_redis_url(), new_redis_url(), poison_outbox=False, **LIMIT)
        shop.charge(1, 2)
        publisher = Forked(lambda: shop.charge(3), number)  # noqa: B023 - done before the next
        publisher.wait()
        with shop.app.connection_for_read() as connection:
            left = connection.default_channel.client.llen("celery")
        assert left + len(_recorded(shop)) >= 2, f"lost at command {number}"
        shop.charge(4)  # whoever publishes next finishes what was begun
        queued, recorded = shop.queued(), _recorded(shop)
        shop.close()
        assert recorded + queued in ([1, 2, 4], [1, 2, 3, 4]), f"killed before command {number}"
        assert len(queued) == 2, f"killed before command {number}"
        if publisher.status != DIED:
            break
    assert number > 4, "it was killed at every command"


def test_MSG_5_of_two_that_make_room_at_a_time_neither_deletes_what_the_other_has_discarded(
    new_redis_url: Callable[[], str],
) -> None:
    shop = Shop(new_redis_url(), new_redis_url(), poison_outbox=False, **LIMIT)
    shop.charge(1, 2)
    other, record = Discarder(shop.app), Discarder._record

    class Slow(Discarder):
        def _record(self, *args: Any) -> Any:
            done = record(self, *args)
            with shop.app.connection_for_write() as connection:  # between record and removal
                assert other(connection, "celery", 1) == 1
            return done

    with shop.app.connection_for_write() as connection:
        assert Slow(shop.app)(connection, "celery", 1) == 0, "the other one has counted it"
    assert (_recorded(shop), shop.queued()) == ([1], [2])
    shop.close()
