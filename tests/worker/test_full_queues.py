"""A full queue, as tasks meet it that publish (MSG-2, MSG-3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chain

from tests import PATIENCE, sampled
from tests.worker.conftest import Crew


@pytest.mark.parametrize(
    ("pool", "broker_url"),
    sampled([("prefork", "redis")], [("threads", "redis"), ("solo", "redis"), ("prefork", "rabbitmq")]),
    indirect=["broker_url"],
)
def test_MSG_3_a_task_is_refused_as_everybody_else_and_what_follows_its_end_is_sent(
    new_crew: Callable[..., Crew], broker_url: str, pool: str
) -> None:
    crew = new_crew(broker_url, poison_queues={"ships": {"max_messages": 1}})
    ship: Any = crew.app.tasks["fleet.ship"]
    ship.apply_async(("first",), queue="ships")
    with crew.worker(pool=pool):
        begun = chain(crew.app.tasks["fleet.ships"].s("mine"), ship.si("next").set(queue="ships"))()
        assert begun.parent.get(timeout=PATIENCE) == "queue 'ships' holds 1 messages, its limit is 1"
        with crew.app.connection_for_read() as connection:
            queue = connection.SimpleQueue("ships", no_ack=True)
            assert [queue.get(timeout=PATIENCE).payload[0] for _ in range(2)] == [["first"], ["next"]]
            queue.close()
        assert crew.send("ships", "mine").get(timeout=PATIENCE) == "shipped", "there is room again"
