"""A second message with the same idempotency key has no second effect (NEW-12)."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery

from celery_poison import guarded, install
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.extensions.once.claims import Claims
from celery_poison.extensions.once.per_key import digest_of, once_per_key
from celery_poison.extensions.once.settings import OnceSettings
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Start
from celery_poison.plugin import plugin_of
from celery_poison.policy import Policy
from celery_poison.upstream.requests import WaitsForKey
from tests import PATIENCE, sampled
from tests.worker.conftest import Crew


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        yield Ledger(client, Keys("once"))


class Body:
    """The body of a task that is called with an order."""

    def __init__(self, result: Any = "paid") -> None:
        self.result = result
        self.orders: list[Any] = []

    def __call__(self, order: Any) -> Any:
        self.orders.append(order)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def _app(**settings: Any) -> Celery:
    app = Celery("once", set_as_current=False, broker="redis://", backend="cache+memory://")
    install(app, **settings)
    return app


class Run:
    """One start of a message of a task with a key; its number tells it from others."""

    def __init__(self, ledger: Any, number: int, app: Celery | None = None, key: Any = lambda order: order):
        self.ledger = ledger
        self.mid, self.id, self.token = f"m{number}", f"id{number}", f"boot.{number}"
        self.start = Start.of(self.token, "node/boot", self.id, "pays", queue="q")
        self.task = SimpleNamespace(name="pays", app=app or _app(), backend=None)
        self.options = OnceSettings(idempotency_key=key, idempotency_window=60.0)

    def begins(self) -> Run:
        self.ledger.client.hset(self.ledger.keys.running, self.mid, self.start.encode())
        return self

    def ends(self, how: str = "D") -> None:
        self.ledger.client.hset(self.ledger.keys.done, self.token, how)

    def dies(self) -> None:
        self.ledger.client.hdel(self.ledger.keys.running, self.mid)

    def __call__(self, body: Body, order: Any = 7) -> Any:
        who = self.ledger, cast(Any, self.task), self.options, self.mid, self.start
        result, self.first = once_per_key(*who, lambda: body(order), ((order,), {}))
        return result


def _stores(run: Run, result: Any) -> None:
    meta = {"status": "SUCCESS", "result": result}
    run.task.backend = SimpleNamespace(
        as_uri=lambda: "redis://", get_task_meta=lambda id, cache: {"id1": meta}[id]
    )


def test_NEW_12_a_second_message_gives_the_first_ones_result_and_has_no_effect(ledger: Ledger) -> None:
    first, second, body = Run(ledger, 1).begins(), Run(ledger, 2).begins(), Body()
    assert first(body) == "paid"
    first.ends()
    _stores(second, "paid")
    assert second(body) == "paid" and second.first == "id1"
    assert body.orders == [7]
    assert Run(ledger, 3).begins()(body, order=8) == "paid", "another key is another effect"


def test_NEW_12_without_a_stored_result_a_second_message_gives_none(ledger: Ledger) -> None:
    Run(ledger, 1).begins()(Body())
    Run(ledger, 1).ends()
    body = Body()
    assert Run(ledger, 2).begins()(body) is None and not body.orders


def test_NEW_12_a_second_message_waits_while_the_first_runs_or_stores_its_result(ledger: Ledger) -> None:
    first, second, body = Run(ledger, 1).begins(), Run(ledger, 2).begins(), Body()

    def meanwhile(order: Any) -> str:
        with pytest.raises(WaitsForKey):
            second(body)
        return "paid"

    first(cast(Any, meanwhile))
    with pytest.raises(WaitsForKey) as waits:
        second(body)
    assert waits.value.effect == ledger.keys.of("effect", digest_of("pays", 7))
    assert Claims(ledger).still_held({"m2": waits.value.effect, "m9": ledger.keys.of("effect", "?")}) == {
        "m2"
    }
    first.ends()
    assert not Claims(ledger).still_held({"m2": waits.value.effect}) and not body.orders


def test_NEW_12_a_key_is_held_although_the_start_arrives_later_by_its_own_connection(ledger: Ledger) -> None:
    def meanwhile(order: Any) -> None:
        with pytest.raises(WaitsForKey):
            Run(ledger, 2).begins()(Body())

    Run(ledger, 1)(cast(Any, meanwhile))


@pytest.mark.parametrize("how", ["raises", "dies", "dies and is put back"])
def test_NEW_12_a_first_message_that_comes_to_grief_frees_the_key(ledger: Ledger, how: str) -> None:
    first, second, body = Run(ledger, 1).begins(), Run(ledger, 2).begins(), Body()
    with pytest.raises(ValueError):
        first(Body(ValueError()))
    first.ends() if how == "raises" else first.dies()
    if how == "dies and is put back":
        first.token = "boot.11"
        first.start = first.start._replace(token=first.token)
        assert first.begins()(body) == "paid"
    else:
        assert second(body) == "paid"
    assert body.orders == [7]


def test_NEW_12_a_message_that_is_delivered_again_after_its_body_returned_has_no_second_effect(
    ledger: Ledger,
) -> None:
    first, body = Run(ledger, 1).begins(), Body()
    first(body)
    first.dies()
    again = Run(ledger, 1)
    again.token, again.start = "boot.11", again.start._replace(token="boot.11")
    assert again.begins()(body) is None and body.orders == [7]


def test_NEW_12_a_key_counts_for_its_window_from_the_return_on(ledger: Ledger) -> None:
    first, effect = Run(ledger, 1).begins(), ledger.keys.of("effect", digest_of("pays", 7))
    first(Body())
    assert 59_000 < int(cast(Any, ledger.client.pttl(effect))) <= 60_000
    ledger.client.delete(effect)  # as its end does
    first.ends()
    body = Body()
    Run(ledger, 2).begins()(body)
    assert body.orders == [7]


def test_NEW_12_where_the_function_returns_none_there_is_no_key(ledger: Ledger) -> None:
    body = Body()
    for number in (1, 2):
        Run(ledger, number, key=lambda order: None).begins()(body)
    assert body.orders == [7, 7] and not ledger.client.keys("*effect*")


def test_NEW_12_an_error_of_the_users_function_is_the_tasks_own(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError):
        Run(ledger, 1, key=lambda order: 1 // 0).begins()(Body())


@pytest.mark.parametrize("key", ["ü", b"\0\xff", 7, ["a", {"b": None}], {1, 2}])
def test_NEW_12_anything_can_be_a_key_and_no_two_tasks_share_one(key: Any) -> None:
    assert digest_of("a", key) == digest_of("a", key) != digest_of("b", key)


class Away:
    """A ledger whose Redis is away."""

    keys = Keys("once")

    @property
    def scripts(self) -> Away:
        return self

    def call(self, *args: Any, **words: Any) -> None:
        raise LedgerUnavailable("away")


def test_NEW_12_while_redis_is_away_it_runs_without_its_key(caplog: pytest.LogCaptureFixture) -> None:
    body = Body()
    assert Run(Away(), 1)(body) == "paid" and body.orders == [7]
    assert "runs without its idempotency key" in caplog.text


def test_NEW_12_with_fail_open_off_it_waits_until_redis_is_back() -> None:
    body = Body()
    with pytest.raises(WaitsForKey) as waits:
        Run(Away(), 1, _app(poison_fail_open=False))(body)
    assert waits.value.effect == "" and not body.orders


def test_NEW_12_key_and_window_are_options_attributes_and_settings() -> None:
    app = _app(poison_idempotency_window=5)

    @guarded(idempotency_key=lambda order: order)
    @app.task(name="pays", shared=False)
    def pays(order: int) -> None: ...

    options = Policy.of(app.tasks["pays"], plugin_of(app).settings).section(OnceSettings)
    assert options.idempotency_key is not None and options.idempotency_key(3) == 3
    assert options.idempotency_window == 5
    with pytest.raises(ConfigurationError, match="idempotency_window"):
        guarded(idempotency_window=0)
    assert pays(3) is None and pays.apply((3,)).get() is None, "called directly or eagerly there is no key"


def _parked(crew: Crew) -> int:
    return crew.quarantine.queries.totals()["parked"]


@pytest.mark.parametrize(
    ("broker_url", "pool"),
    sampled([("redis", "prefork")], [("rabbitmq", "threads")]),
    indirect=["broker_url"],
)
def test_NEW_12_in_a_fleet_a_second_message_waits_parked_and_gives_the_first_ones_result(
    crew: Crew, pool: str
) -> None:
    """One that runs, one that raises and, in a pool that survives it, one that dies."""
    with crew.worker(pool=pool):
        first = crew.send("pays", 1, "waits")
        crew.await_that(lambda: crew.starts("pays") == 1, "runs")
        second = crew.send("pays", 1, "waits")
        crew.await_that(lambda: _parked(crew) == 1, "parked")
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1, "it holds no slot"
        assert _parked(crew) == 1 and second.state == "PENDING"
        crew.marks.repair()
        assert first.get(timeout=PATIENCE) == second.get(timeout=PATIENCE) == f"paid by {first.id}"
        assert crew.starts("pays") == 1

        failed = crew.send("pays", 2, "raises")
        with pytest.raises(ValueError):
            failed.get(timeout=PATIENCE)
        retried = crew.send("pays", 2, "pays")
        assert retried.get(timeout=PATIENCE) == f"paid by {retried.id}"
        if pool == "prefork":
            crew.send("pays", 3, "dies")
            crew.await_that(crew.quarantine.list, "convicted")
            after = crew.send("pays", 3, "pays")
            assert after.get(timeout=PATIENCE) == f"paid by {after.id}"
        crew.await_that(crew.nothing_runs, "forgotten")
    remarks = {entry["id"]: entry["note"] for entry in crew.events("finished")}
    assert first.id in remarks[second.id] and not remarks[first.id]
    assert not crew.quarantine.list(candidates=True)
