"""Redis without a password in the URL: a provider of redis-py's says who logs in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from redis.credentials import CredentialProvider

from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.ledger.connection import clear_errors, open_redis
from celery_poison.plugin import plugin_of
from celery_poison.testing import RedisServer
from tests.apps.harness import Fleet
from tests.cli.conftest import Console

PATH = f"{__name__}.Tokens"


class Tokens(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "app", "token-1"


class Expired(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        raise KeyError("token-1")


@pytest.fixture
def server(new_server: Callable[..., RedisServer]) -> Iterator[RedisServer]:
    """A Redis that lets nobody in without a name; with the password of a person who looks after it."""
    server = new_server()
    with server.client() as admin:
        for user, password in ("app", "token-1"), ("admin", "secret"):
            admin.acl_setuser(
                user, enabled=True, passwords=[f"+{password}"], keys=["*"], channels=["*"], commands=["+@all"]
            )
        admin.acl_setuser("default", enabled=False)
        yield server
        admin.execute_command("AUTH", "admin", "secret")
        admin.acl_setuser("default", enabled=True, nopass=True, commands=["+@all"], keys=["*"])


def test_NEW_30_a_guarded_worker_logs_in_by_the_provider_in_its_URL(
    new_fleet: Callable[..., Fleet], server: RedisServer
) -> None:
    """With an option that is kombu's own."""
    fleet = new_fleet(f"{server.url(2)}?credential_provider={PATH}&heartbeat=0")
    with fleet.worker() as worker:
        worker.wait_ready()
        poison = fleet.send("kill_child")
        fleet.send("healthy", 1)
        fleet.await_that(fleet.quarantine.list, "in quarantine")
        fleet.await_that(lambda: fleet.marks.all("healthy", "end"), "the other one is done")
    assert [message.id for message in fleet.quarantine.list()] == [poison.id]


@pytest.mark.parametrize(
    "settings",
    [
        {"redis_backend_credential_provider": PATH},
        {"redis_backend_credential_provider": Tokens()},
        {"redis_username": "app", "redis_password": "token-1"},
    ],
    ids=["class", "provider", "password"],
)
def test_NEW_30_a_ledger_in_the_result_backend_logs_in_as_that_does(
    server: RedisServer, settings: dict[str, Any]
) -> None:
    app = Celery(broker="memory://", backend=server.url(3), set_as_current=False)
    app.conf.update(settings)
    with plugin_of(app).open_ledger().client as client:
        assert client.ping() and client.acl_whoami() in ("app", b"app")


def test_NEW_30_a_provider_where_kombu_reads_none_is_a_login_that_is_refused_in_one_sentence(
    server: RedisServer,
) -> None:
    """In the options of the transport: plain Celery does not log in either."""
    app = Celery(broker=server.url(2), set_as_current=False)
    app.conf.broker_transport_options = {"credential_provider": PATH}
    console = Console(app)
    refused = console.run("status", status=3)
    assert "Redis refuses the user name or password" in refused.stderr and not refused.stdout
    checks = {each["check"]: each["level"] for each in console.json("doctor", status=3)}
    assert (checks["reachable"], checks["broker"]) == ("FAIL", "FAIL")


def test_NEW_30_a_provider_that_fails_is_a_ledger_that_is_away_and_its_words_are_not_shown(
    server: RedisServer,
) -> None:
    client = open_redis(f"{server.url(2)}?credential_provider={__name__}.Expired")
    with pytest.raises(LedgerUnavailable, match="Expired raised KeyError") as away, clear_errors("asking"):
        client.ping()
    assert "token-1" not in str(away.value)


@pytest.mark.parametrize("path", ["nowhere.Tokens", f"{__name__}.Missing", f"{__name__}.Fleet", "Tokens"])
def test_NEW_30_a_provider_that_cannot_be_made_is_named(path: str) -> None:
    with pytest.raises(ConfigurationError, match=path):
        open_redis(f"redis://host/0?credential_provider={path}")


def test_NEW_30_an_option_that_nobody_knows_is_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    options = "heartbeat=0&connect_timeout=3&decode_responses=true&colour=red"
    arguments = open_redis(f"redis://host/0?{options}").connection_pool.connection_kwargs
    assert arguments["socket_connect_timeout"] == 3 and "decode_responses" not in arguments
    assert [record.getMessage() for record in caplog.records if "colour" in record.getMessage()]
    assert not [record for record in caplog.records if "heartbeat" in record.getMessage()]
