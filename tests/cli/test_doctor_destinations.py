"""`doctor` finds that an exception destination cannot be written to, and writes nothing itself (WAS-4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery

from celery_poison import guarded
from celery_poison.rules.destinations import Destination
from celery_poison.testing import RedisServer
from tests.cli.conftest import Console
from tests.harness.servers import RabbitServer

NAMED = {"oom": "memory", "signal:9": "killed", "*": "system"}


def _findings(app: Celery, status: int) -> dict[str, dict[str, str]]:
    """By the queue that each names."""
    told = Console(app).json("doctor", status=status)
    return {each["said"].split()[1]: each for each in told if each["check"] == "destination"}


def _naming(app: Celery, destination: Destination = "pages") -> Celery:
    @guarded(exception_destination=destination)
    @app.task(name="prints", shared=False)
    def prints() -> None: ...

    return app


def _make(app: Celery, *queues: str) -> None:
    with app.connection_for_write() as connection:
        for queue in queues:
            app.amqp.Queues(None, create_missing=True)[queue](connection.default_channel).declare()


@pytest.fixture
def limited(rabbit_server: RabbitServer, rabbit_url: str) -> Callable[..., str]:
    """A function that makes a user with some rights on this virtual host, and returns its URL."""

    def make(configure: str, write: str, read: str) -> str:
        parts = urlsplit(rabbit_url)
        name = parts.path[1:]
        rabbit_server.ctl("add_user", f"user{name}", "pw")
        rabbit_server.ctl("set_permissions", "-p", name, f"user{name}", configure, write, read)
        return f"amqp://user{name}:pw@{parts.hostname}:{parts.port}/{name}"

    return make


def _queues(server: RabbitServer, url: str) -> list[str]:
    """Each with the number of its messages."""
    told = server.ctl("list_queues", "-p", urlsplit(url).path[1:], "name", "messages")
    return told.splitlines()[1:]


def test_WAS_4_on_Redis_a_destination_whose_key_may_not_be_written_is_found_with_the_rule_that_allows_it(
    new_fleet: Callable[..., Any], new_server: Callable[..., RedisServer], redis_url: str
) -> None:
    server = new_server()
    rights = ["on", ">pw", "~memory", "~celery*", "~_kombu*", "~poison*", "&*", "+@all"]
    server.client().execute_command("ACL", "SETUSER", "limited", *rights)
    url = server.url().replace("redis://", "redis://limited:pw@")
    fleet = new_fleet(url, poison_redis_url=redis_url, poison_exception_destination=NAMED)
    found = _findings(_naming(fleet.app), status=1)
    assert {name: each["level"] for name, each in found.items()} == {
        "memory": "ok",
        "killed": "FAIL",
        "pages": "FAIL",
    }
    assert "(poison_exception_destination)" in found["killed"]["said"]
    assert "(task prints)" in found["pages"]["said"]
    for name in ("killed", "pages"):
        rule = found[name]["cure"].removeprefix("ACL SETUSER <user> ").partition(":")[0]
        server.client().execute_command("ACL", "SETUSER", "limited", *rule.split())
    assert {each["level"] for each in _findings(fleet.app, status=0).values()} == {"ok"}
    assert not server.client().exists("memory", "killed", "pages")


def test_WAS_4_on_RabbitMQ_a_user_without_the_right_to_write_is_found(
    new_fleet: Callable[..., Any], limited: Callable[..., str], rabbit_server: RabbitServer
) -> None:
    url = limited(".*", "^(celery|memory)$", ".*")
    fleet = new_fleet(url, poison_queues={"a": {"exception_destination": "memory"}})
    _make(fleet.app, "memory")
    (found,) = _findings(fleet.app, status=1).values()
    assert found["level"] == "FAIL" and "poison_queues['a']" in found["said"]
    assert "write pattern match amq.default" in found["cure"]
    assert _queues(rabbit_server, url) == ["memory\t0"]


def test_WAS_4_on_RabbitMQ_a_destination_that_is_not_there_is_found_where_it_may_not_be_made(
    new_fleet: Callable[..., Any], limited: Callable[..., str], rabbit_server: RabbitServer
) -> None:
    url = limited("^(memory|pages|there)$", "^(amq.default|memory|there)$", ".*")
    fleet = new_fleet(url, poison_exception_destination=NAMED)
    _naming(fleet.app, {"exit:1": "there", "*": "pages"})
    _make(fleet.app, "there")
    found = _findings(fleet.app, status=1)
    assert {name: each["level"] for name, each in found.items()} == {
        "memory": "ok",
        "killed": "FAIL",
        "pages": "FAIL",
        "there": "ok",
    }
    assert "its first message makes it" in found["memory"]["said"]
    assert "configure pattern match killed" in found["killed"]["cure"]
    assert "write, and read, pattern match pages" in found["pages"]["cure"]
    assert _queues(rabbit_server, url) == ["there\t0"], "nothing was made, nothing was published"
