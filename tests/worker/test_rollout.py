"""In a rolling deploy, messages of a task that only other workers know go back for them (NEW-29)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from celery import uuid
from celery.exceptions import NotRegistered
from celery.result import AsyncResult

from celery_poison.basics.parts import Panel
from celery_poison.desk.survey import overview
from celery_poison.extensions.rollout.flower import PART
from celery_poison.headers import UNKNOWN_SINCE
from celery_poison.testing import Worker
from tests import PATIENCE
from tests.worker.conftest import Crew

NEW = {"NEW_RELEASE": "1"}
MESSAGES = 4


def _panel(crew: Crew) -> Panel:
    return next(panel for panel in overview(crew.app).panels if panel.name == "rollout")


def _in_flower(crew: Crew) -> str:
    lines = [*PART.held_back(overview(crew.app))]
    assert not any(line.can_go for line in lines)
    return "; ".join(line.story for line in lines)


@contextmanager
def _busy(crew: Crew, pool: str = "prefork") -> Iterator[Worker]:
    """A worker of the new release, which is full: the next messages go to others."""
    with crew.worker("new", pool, concurrency=1, env=NEW) as new:
        crew.send("gated", 0)
        crew.await_that(lambda: crew.marks.all("gated", "start"), "it is busy")
        yield new


def _send(crew: Crew, n: int) -> AsyncResult:
    return crew.app.send_task("fleet.new_plain" if n % 4 == 1 else "fleet.new_guarded", (n,))


def test_NEW_29_what_only_another_worker_knows_goes_back_for_it_and_without_it_to_quarantine(
    new_crew: Callable[..., Crew], redis_url: str
) -> None:
    crew = new_crew(redis_url, worker_prefetch_multiplier=1)
    with _busy(crew) as new, crew.worker("old", concurrency=1):
        sent = [_send(crew, n) for n in range(MESSAGES)]
        crew.await_that(lambda: len(crew.events("parked")) > 2 * MESSAGES, "they go back again and again")
        assert {result.state for result in sent} == {"PENDING"}, "no caller hears of it"
        crew.await_that(lambda: "of fleet.new_guarded wait for new@" in _panel(crew).line, "status says so")
        crew.await_that(lambda: "wait for new@test" in _in_flower(crew), "Flower says so")
        crew.marks.open_gate()
        assert [result.get(timeout=PATIENCE) for result in sent] == [*range(MESSAGES)]
        assert not crew.quarantine.list() and not crew.events("crashed")
        starts = crew.marks.count("new_guarded", "start") | crew.marks.count("new_plain", "start")
        assert starts == dict.fromkeys(range(MESSAGES), 1)
        notes = {entry["note"] for entry in crew.events("parked")}
        assert notes == {"until a worker takes it that knows its task: new@test"}
        new.stop()
        with pytest.raises(NotRegistered):  # after a rollback, as soon as it is none that restarts
            _send(crew, 0).get(timeout=PATIENCE)
        (kept,) = crew.quarantine.list()
        assert kept.cause == "unknown_task" and "; known to new@test, gone for " in kept.reason


def _on(new_crew: Callable[..., Crew], broker: str, request: pytest.FixtureRequest) -> Crew:
    """A quorum queue that gives a message back once, and then drops it; or a queue of another kind."""
    url = request.getfixturevalue("redis_url" if broker == "redis" else "rabbit_url")
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 1} if broker == "quorum" else {}
    queue = {"exchange": "celery", "routing_key": "celery", "queue_arguments": arguments}
    return new_crew(url, worker_prefetch_multiplier=1, task_queues={"celery": queue})


@pytest.mark.matrix
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
@pytest.mark.parametrize("broker", ["redis", "classic", "quorum"])
def test_NEW_29_on_every_pool_and_broker_all_reach_who_knows_their_task_and_it_costs_no_delivery(
    new_crew: Callable[..., Crew], broker: str, pool: str, request: pytest.FixtureRequest
) -> None:
    crew = _on(new_crew, broker, request)
    with _busy(crew, pool), crew.worker("old", pool, concurrency=1):
        sent = [_send(crew, n) for n in range(3)]
        later = crew.app.send_task("fleet.new_guarded", (3,), countdown=2)
        crew.await_that(lambda: len(crew.events("parked")) > 12, "each goes back several times")
        crew.marks.open_gate()
        assert [result.get(timeout=PATIENCE) for result in (*sent, later)] == [*range(4)]
    starts = crew.marks.count("new_guarded", "start") | crew.marks.count("new_plain", "start")
    assert starts == dict.fromkeys(range(4), 1) and not crew.quarantine.list()


@pytest.mark.matrix
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_NEW_29_a_lone_message_beside_an_idle_worker_that_knows_its_task_reaches_it(
    new_crew: Callable[..., Crew], broker_url: str, pool: str
) -> None:
    """Equal pauses keep step with the polls of a Redis broker: it comes back to the same worker."""
    crew = new_crew(broker_url)
    with crew.worker("new", pool, concurrency=1, env=NEW), crew.worker("old", pool, concurrency=1):
        crew.await_that(lambda: _idle(crew) == {"new@test", "old@test"}, "both are seen to be idle")
        for n in range(3):
            sent = _send_late(crew, n, 4.0)
            crew.await_that(lambda sent=sent: sent.ready() or _returns(crew, sent) > 20, "an end")
            assert _returns(crew, sent) <= 20 and sent.get(timeout=PATIENCE) == n


def _send_late(crew: Crew, n: int, seconds: float) -> AsyncResult:
    """Send what has gone back for so long already; a producer of the plugin would take that away."""
    sent = crew.app.amqp.as_task_v2(uuid(), "fleet.new_guarded", (n,))
    sent.headers[UNKNOWN_SINCE] = int((time.time() - seconds) * 1000)
    with crew.app.producer_or_acquire() as producer:
        producer.publish(sent.body, routing_key="celery", headers=sent.headers, **sent.properties)
    return crew.app.AsyncResult(sent.headers["id"])


def _idle(crew: Crew) -> set[str]:
    workers = crew.quarantine.queries.workers(10_000)
    return {each.node for each in workers if each.portrait is not None and not each.portrait.slots_busy}


def _returns(crew: Crew, sent: AsyncResult) -> int:
    return sum(entry["id"] == sent.id for entry in crew.events("parked"))


STEPS = ("before it is parked", "parked, not acknowledged", "published, not noted")
CELLS = (
    *((broker, "prefork") for broker in ("redis", "classic", "quorum")),
    *(("redis", "threads"), ("quorum", "solo"), ("redis", "gevent"), ("quorum", "eventlet")),
)


@pytest.mark.matrix
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("broker", "pool"), CELLS)
def test_NEW_29_a_death_at_any_step_loses_nothing_and_has_nothing_run_twice(
    new_crew: Callable[..., Crew], broker: str, pool: str, step: str, request: pytest.FixtureRequest
) -> None:
    crew = _on(new_crew, broker, request)
    crew.module = "tests.worker.dies_postponing"  # type: ignore[misc]
    with ExitStack() as workers:
        # It comes first: its monitor is the active one. It receives nothing before the other is busy.
        dying = crew.worker("dies", pool, concurrency=1, env={"DIES_AT": step}, queues=["idle"])
        dies = workers.enter_context(dying).wait_ready()
        workers.enter_context(_busy(crew, pool))
        consume = partial(crew.app.control.add_consumer, "celery", destination=[dies.hostname], reply=True)
        crew.await_that(consume, "it hears of that")
        sent = [crew.app.send_task("fleet.new_guarded", (n,)) for n in range(MESSAGES)]
        crew.await_that(lambda: not dies.is_alive(), "it is killed")
        with crew.worker("old", pool, concurrency=1):
            crew.marks.open_gate()
            assert [result.get(timeout=PATIENCE) for result in sent] == [*range(MESSAGES)]
            crew.await_that(lambda: not crew.quarantine.queries.totals()["parked"], "nothing waits")
    assert crew.marks.count("new_guarded", "start") == dict.fromkeys(range(MESSAGES), 1)
    assert not crew.quarantine.list() and not crew.events("crashed")


@pytest.mark.matrix
def test_NEW_29_evidence_says_who_knew_a_task_and_could_not_take_it(
    new_crew: Callable[..., Crew], redis_url: str
) -> None:
    crew = new_crew(redis_url, worker_prefetch_multiplier=1, poison_unknown_task_wait=1.0)
    with _busy(crew):
        with crew.worker("old", concurrency=1):
            _send(crew, 0)
            crew.await_that(crew.quarantine.list, "its time is over")
        (kept,) = crew.quarantine.list()
        assert "; known to new@test, where it has not arrived in " in kept.reason
        crew.marks.open_gate()
        crew.quarantine.release([kept.id], force=True)
        crew.await_that(lambda: crew.marks.count("new_guarded", "start") == {0: 1}, "released, it runs")
    with crew.worker("new", env=NEW, queues=["mail"]) as new, crew.worker("old", concurrency=1) as old:
        for each in (new, old):
            each.wait_ready()
        _send(crew, 2)
        crew.await_that(crew.quarantine.list, "kept at once")
        assert crew.quarantine.list()[0].reason.endswith("; known to new@test, where celery is not consumed")
        assert not _panel(crew).decisions
        with crew.worker("late", env=NEW):
            crew.await_that(lambda: _panel(crew).decisions, "it is said that it may be released now")
            assert _panel(crew).decisions == [
                "1 message of fleet.new_guarded in quarantine: late@test knows the task by now"
            ]
            (typed,) = _panel(crew).typed
            assert typed == "poison release --filter 'cause=unknown_task task=fleet.new_guarded'"


@pytest.mark.matrix
def test_NEW_29_while_the_only_worker_that_knows_a_task_restarts_no_caller_hears_of_it(
    new_crew: Callable[..., Crew], redis_url: str
) -> None:
    crew = new_crew(redis_url, worker_prefetch_multiplier=1, poison_activation_interval=20.0)
    with crew.worker("old", concurrency=1):
        with _busy(crew) as new:
            sent = [_send(crew, n) for n in range(MESSAGES)]
            crew.await_that(lambda: len(crew.events("parked")) > MESSAGES, "they go back")
            crew.marks.open_gate()
            new.stop()
        sent += [_send(crew, n) for n in range(MESSAGES, 2 * MESSAGES)]
        waits = "until a worker is back that knew its task: new@test"
        crew.await_that(lambda: waits in {each["note"] for each in crew.events("parked")}, "they wait")
        with crew.worker("new", concurrency=1, env=NEW):
            assert [result.get(timeout=PATIENCE) for result in sent] == [*range(2 * MESSAGES)]
    assert not crew.quarantine.list()
