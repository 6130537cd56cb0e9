"""A ledger belongs to one app on one broker: that of another is neither mixed up with it, nor locked out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from celery_poison.broker.identity import identity_of, is_same_broker, server_of
from celery_poison.errors import SchemaMismatch
from celery_poison.flower.async_ledger import AsyncLedger
from celery_poison.ledger.signature import refuse_unless_owned
from celery_poison.plugin import plugin_of
from celery_poison.testing import RedisServer
from tests import PATIENCE
from tests.cli.conftest import Console
from tests.strangers.ids import Ids, build
from tests.strangers.lossy import LossyLink

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
NewServer = Callable[..., RedisServer]


@pytest.fixture
def production(assemble: Callable[..., Any], broker_url: str, new_redis_url: Callable[[], str]) -> Ids:
    fleet: Ids = partial(assemble, Ids)(broker_url, poison_redis_url=new_redis_url())
    return fleet


@contextmanager
def _signed(production: Ids) -> Iterator[None]:
    """A worker of production runs, and has written down what its broker calls itself."""
    with production.worker():
        production.await_that(lambda: production.quarantine.queries.meta().get("server"), "signed")
        yield


def _beside(production: Ids, broker_url: str) -> Any:
    """The same app and ledger with another broker."""
    return build({**production.environ(), "BROKER_URL": broker_url})


def test_another_broker_with_the_same_ledger_is_refused_until_somebody_says_that_it_has_moved(
    production: Ids, new_server: NewServer
) -> None:
    database = production.broker_url.rpartition("/")[2]
    elsewhere = f"{new_server(databases=10_000).url()[:-1]}{database}"
    staging = _beside(production, elsewhere)
    with _signed(production):
        console = Console(staging)
        refused = console.run("release", "--all", "--yes", status=2).stderr
        assert "belongs to the broker at 127.0.0.1:" in refused and "--broker-moved" in refused
        assert "--broker-moved" in console.out("doctor", status=1)
        with production.worker("staging", env={"BROKER_URL": elsewhere}) as worker:
            assert worker.wait() != 0
            assert "belongs to the broker at" in worker.log_text()
    console.out("doctor", "--broker-moved")
    assert production.quarantine.queries.meta()["address"] in elsewhere
    with production.worker("moved", env={"BROKER_URL": elsewhere}) as worker:
        assert staging.send_task("fleet.work", (1,)).get(timeout=PATIENCE) == 1
    with pytest.raises(SchemaMismatch, match="not to that at"):
        production.quarantine.check_owner()
    staging.close()


@BOTH
def test_another_name_of_the_same_broker_is_no_other_broker(production: Ids) -> None:
    with LossyLink(production.broker_url) as link, _signed(production):
        other = _beside(production, link.url)
        assert identity_of(other)["address"] != identity_of(production.app)["address"]
        assert server_of(other) == server_of(production.app) != ""
        Console(other).run("list")
        with production.worker("w2", env={"BROKER_URL": link.url}) as worker:
            worker.wait_ready()
            known = production.quarantine.queries.meta()["address"].split()
            assert {identity_of(app)["address"] for app in (other, production.app)} == {*known}
        other.close()


@BOTH
def test_a_worker_whose_broker_does_not_answer_yet_waits_for_it_as_celery_does(production: Ids) -> None:
    with LossyLink(production.broker_url) as link, _signed(production):
        link.pause()
        with production.worker("w2", env={"BROKER_URL": link.url}) as worker:
            production.await_that(lambda: "does not say what it is" in worker.log_text(), "it has asked")
            link.heal()
            worker.wait_ready()
            leases = production.quarantine.queries.leases
            production.await_that(lambda: any(each.startswith("w2@") for each in leases()), "it has a lease")


def test_another_name_of_a_broker_that_was_restarted_is_no_other_broker(
    assemble: Callable[..., Any], new_server: NewServer, new_redis_url: Callable[[], str]
) -> None:
    broker = new_server(databases=10_000)
    production: Ids = partial(assemble, Ids)(broker.url(1), poison_redis_url=new_redis_url())
    with _signed(production):
        before = production.quarantine.queries.meta()["server"]
    broker.restart()
    with LossyLink(production.broker_url) as link:
        other = _beside(production, link.url)
        assert server_of(other) not in ("", before)
        with production.worker("w2", env={"BROKER_URL": link.url}) as worker:
            worker.wait_ready()
        other.close()


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_where_a_broker_has_several_addresses_none_of_them_answers_for_the_one_that_signed(
    production: Ids,
) -> None:
    other = _beside(production, production.broker_url)
    other.conf.broker_url = [production.broker_url, production.broker_url]
    assert server_of(other) != ""
    assert server_of(other, at="127.0.0.1:1") == ""
    assert not is_same_broker(other, {"server": "another", "address": "127.0.0.1:1"})
    other.close()


def _address(broker_url: Any, **options: Any) -> str:
    environ = {"BROKER_URL": "memory://", "POISON_REDIS_URL": "redis://127.0.0.1:1"}
    app = build(environ)
    app.conf.update(broker_url=broker_url, broker_transport_options=options)
    found = identity_of(app)["address"]
    app.close()
    return found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://u:p@a:7000/1", "redis://A:7000/1"),
        ("amqp://a//", "amqp://a:5672//"),
        (["amqp://a//", "amqp://b//"], "amqp://b:5672//"),
        ("amqp://a//;amqp://b//", "amqp://b//"),
        ("redis://a/0", "redis://a:6379/0"),
    ],
)
def test_addresses_that_meet_are_one_broker(one: Any, other: Any) -> None:
    assert {*_address(one).split()} & {*_address(other).split()}


def test_two_masters_of_one_sentinel_are_two_brokers() -> None:
    url = "sentinel://a:26379;sentinel://b:26379"
    assert not {*_address(url, master_name="x").split()} & {*_address(url, master_name="y").split()}


def test_a_broker_without_an_address_or_a_ledger_that_knows_none_is_compared_by_the_rest() -> None:
    mine = {"app": "a", "broker": "memory//", "schema": "1"}
    refuse_unless_owned(mine, {**mine, "address": "h:1"}, lambda found: True)
    refuse_unless_owned({**mine, "address": "h:1"}, mine, lambda found: True)
    refuse_unless_owned({**mine, "address": "h:1"}, {**mine, "address": "g:1"}, lambda found: True)
    signed = {**mine, "address": "h:1", "server": "s"}
    refuse_unless_owned(signed, {**mine, "address": "g:1"}, lambda found: True)
    with pytest.raises(SchemaMismatch, match=r"h:1.*g:1"):
        refuse_unless_owned(signed, {**mine, "address": "g:1"}, lambda found: False)


def test_a_schema_that_is_no_number_is_a_sentence_and_no_traceback(production: Ids) -> None:
    ledger = plugin_of(production.app).open_ledger()
    ledger.client.hset(ledger.keys.meta, "schema", "x")
    with production.worker() as worker:
        assert worker.wait() != 0
        assert "upgrade the older workers" in worker.log_text()
        assert "Traceback" not in worker.log_text()
    Console(production.app).run("list", status=2)
    for schema in ("", "²", "-1", "1.0", "9" * 5000):
        with pytest.raises(SchemaMismatch):
            refuse_unless_owned({"schema": schema}, {"app": "a", "broker": "b"}, lambda: "")


def test_flower_shows_nothing_of_another_apps_ledger(production: Ids) -> None:
    with _signed(production):
        production.app.main = "another"
        shown = AsyncLedger(production.app)

        async def look() -> str:
            with pytest.raises(SchemaMismatch):
                await shown.ask(lambda: shown.quarantine.list(), PATIENCE)
            await shown._refresh()
            return shown.trouble

        assert "belongs to app 'fleet'" in asyncio.run(look())
        production.app.main = "fleet"
