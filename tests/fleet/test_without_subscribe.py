"""A ledger's user who may not subscribe: deaths are noticed by the heartbeat, everything else works."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_poison.testing import RedisServer
from tests.cli.conftest import Console
from tests.fleet.crew import Watched

RULES = ["resetchannels", "-subscribe"]


@pytest.fixture(params=RULES)
def limited(
    request: pytest.FixtureRequest, redis_server: RedisServer, new_redis_url: Callable[[], str]
) -> Iterator[str]:
    """The URL of a database, by a user who lacks something."""
    acl, user = redis_server.client(), request.node.name[-6:].strip("[]-")
    acl.execute_command("ACL", "SETUSER", user, "on", ">pw", "~*", "&*", "+@all", request.param)
    yield new_redis_url().replace("redis://", f"redis://{user}:pw@")
    acl.acl_deluser(user)


def test_EMS_1_without_the_right_to_subscribe_a_death_is_noticed_by_the_heartbeat(
    crew: Watched, limited: str
) -> None:
    crew.ledger_url = limited
    results = crew.hold(4)
    with crew.worker() as first:
        held = crew.await_held(first, 2)
        with crew.worker("w2") as second:
            second.wait_ready()
            console = Console(crew.app)
            assert {w["noticed_by"] for w in console.json("workers")} == {"heartbeat"}
            assert "heartbeat" in console.out("workers")
            first.kill_group()
            crew.await_events("failover_finished")
            crew.let_go()
            crew.await_invariants(results, flagged=held)
    assert [entry["note"] for entry in crew.events("worker_lost")] == ["silent"]
    (told,) = (f for f in console.json("doctor") if f["check"] == "presence")
    assert told["level"] == "warn"
