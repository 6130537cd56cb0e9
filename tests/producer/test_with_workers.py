"""The whole way: a caller, the outbox, a relay in a real worker, the task."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from celery import chord

from celery_poison.broker.kinds import depth
from celery_poison.extensions.outbox import relay
from celery_poison.extensions.outbox.desk import OutboxDesk
from celery_poison.plugin import plugin_of
from celery_poison.rules.blocks import RuleKind
from celery_poison.testing.servers import wait_until
from tests import PATIENCE, sampled
from tests.harness.servers import RabbitServer
from tests.producer.orders import SqlOrders, rows
from tests.services import need
from tests.worker.conftest import Crew

QUICK = {"poison_outbox": True, "poison_outbox_retry_interval": 0.1, "poison_outbox_resend_interval": 0.5}


def _desk(crew: Crew) -> OutboxDesk:
    return OutboxDesk(plugin_of(crew.app))


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_TP1_4_row_9_a_task_that_no_worker_knows_is_blocked_and_everything_else_runs_by_a_workers_relay(
    assemble: Callable[..., Crew], broker_url: str
) -> None:
    crew = assemble(Crew, broker_url, **QUICK)
    adds = crew.app.tasks["fleet.adds"]
    with crew.worker():
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        assert chord([adds.si([], 1), adds.si([], 2)])(adds.s(0)).get(timeout=PATIENCE) == 3
        crew.app.send_task("fleet.unheard_of", [1], outbox=True)
        desk = _desk(crew)
        crew.await_that(lambda: [each for each in desk.lanes() if each.blocked], "it is blocked")
        crew.app.send_task("fleet.unheard_of", [2], outbox=True)
        assert crew.send("healthy", 2).get(timeout=PATIENCE) == 2, "its queue goes on"
        crew.await_that(lambda: [each for each in desk.lanes() if each.waiting], "the next one waits")
        (lane,) = desk.lanes()
        assert (lane.task, lane.waiting, (lane.blocked or {})["cause"]) == (
            "fleet.unheard_of",
            1,
            "unknown_task",
        )
        assert [each.cause for each in crew.quarantine.list()] == ["unknown_task"]
        assert len(crew.events("send_failed")) == len(crew.events("queue_blocked")) == 1


def test_TP1_6_a_blockade_stops_sending_and_consuming_and_lifting_it_starts_both(
    assemble: Callable[..., Crew], redis_url: str
) -> None:
    crew = assemble(Crew, redis_url, **QUICK)
    with crew.worker(queues=["celery", "mails"]):
        assert crew.send("healthy", 0, queue="mails").get(timeout=PATIENCE) == 0
        _desk(crew).block("mails", consuming=True, actor="ann")
        crew.await_that(
            lambda: [each.paused for each in crew.quarantine.queries.workers(60_000)] == ["mails"],
            "nobody consumes it",
        )
        there = crew.send("healthy", 1, queue="mails", outbox=False)
        waits = crew.send("healthy", 2, queue="mails")
        assert crew.send("healthy", 3).get(timeout=PATIENCE) == 3, "the other queue goes on"
        with crew.app.connection_for_read() as connection:
            assert depth(connection, "mails") == 1
        assert [each.waiting for each in _desk(crew).lanes()] == [1]
        _desk(crew).unblock("mails", actor="ann")
        assert [each.get(timeout=PATIENCE) for each in (there, waits)] == [1, 2]


def test_TP1_1_a_workers_relay_says_what_redis_refuses_to_it_alone(
    assemble: Callable[..., Crew], redis_url: str
) -> None:
    crew = assemble(Crew, redis_url, **QUICK)
    ledger = plugin_of(crew.app).open_ledger()
    ledger.client.set(ledger.keys.outbox_due, "no sorted set")
    with crew.worker():
        crew.await_that(lambda: "WRONGTYPE" in crew.log_text(), "the worker's log names the refusal")
        ledger.client.delete(ledger.keys.outbox_due)
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1, "it goes on by itself"
    ledger.client.close()


def test_TP1_1_a_workers_relay_moves_what_was_committed_in_the_users_database(
    assemble: Callable[..., Crew], redis_url: str, tmp_path: Path
) -> None:
    pytest.importorskip("sqlalchemy")
    orders = SqlOrders(f"sqlite:///{tmp_path}/orders.db", with_session=True)
    crew = assemble(Crew, redis_url, poison_outbox_database=orders.setting, **QUICK)
    with crew.worker():
        with orders.transaction(crew.app):
            results = [crew.send("healthy", n) for n in range(3)]
        assert [each.get(timeout=PATIENCE) for each in results] == [0, 1, 2]
        wait_until(lambda: not rows(orders), what="the rows are deleted")
    assert crew.marks.count("healthy", "start") == dict.fromkeys(range(3), 1)
    orders.close()


@pytest.mark.parametrize("is_first", [True, False], ids=["as sent", "the other way round"])
def test_TP1_8_of_two_copies_from_a_relay_that_died_before_it_noted_the_first_only_one_is_run(
    is_first: bool,
    assemble: Callable[..., Crew],
    redis_url: str,
    new_redis_url: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "LEASE", 0.02)
    crew = assemble(Crew, redis_url, poison_redis_url=new_redis_url(), **QUICK)
    crew.send("healthy", 1, 1.0)
    plugin = plugin_of(crew.app)
    for is_noted in (False, True):
        rounds = relay.Rounds(plugin, trouble=False, in_trouble=lambda: None)
        if not is_noted:
            monkeypatch.setattr(rounds._lanes, "note_sent", lambda lease, copies: False)
        wait_until(lambda: rounds.once() == 0.0, what="it is taken")  # noqa: B023 - done before the next
        rounds.close()
    assert not _desk(crew).lanes()
    queue = crew.app.connection_for_read().channel().client
    assert queue.llen("celery") == 2
    if not is_first:  # on RabbitMQ copies that came by different connections have no order
        queue.lmove("celery", "celery", "RIGHT", "LEFT")
    with crew.worker():
        crew.await_that(lambda: crew.events("duplicate"), "one copy is dropped")
        crew.await_that(lambda: crew.done() == 1, "the other one runs")
    assert crew.starts("healthy") == 1


def test_TP1_1_rabbitmq_is_stopped_started_and_out_of_memory_and_every_message_runs(
    assemble: Callable[..., Crew],
) -> None:
    need(RabbitServer.available(), "RabbitMQ")
    with RabbitServer() as rabbit:
        crew = assemble(Crew, rabbit.url(), **QUICK)
        with crew.worker():
            assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
            rabbit.kill()
            began = time.monotonic()
            results = [crew.send("healthy", n) for n in range(1, 11)]
            bound = plugin_of(crew.app).settings.publish_timeout
            assert time.monotonic() - began < bound, "ten callers together waited less than one may"
            crew.await_that(
                lambda: [each.cause for each in _desk(crew).lanes()] == ["transport"], "it is tried"
            )
            rabbit.start()
            assert [each.get(timeout=PATIENCE) for each in results] == [*range(1, 11)]
            rabbit.ctl("set_vm_memory_high_watermark", "0")
            late = crew.send("healthy", 11)
            crew.await_that(lambda: [each.cause for each in _desk(crew).lanes()] == ["resources"], "row 6")
            assert not [each for each in _desk(crew).lanes() if each.blocked]
            rabbit.ctl("set_vm_memory_high_watermark", "0.9")
            assert late.get(timeout=PATIENCE) == 11
            crew.await_that(lambda: not _desk(crew).lanes(), "nothing waits")
        started = crew.marks.count("healthy", "start")
        assert started.pop(11) >= 1, "what was under way when the alarm came is sent at least once"
        assert started == dict.fromkeys(range(11), 1)


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_TP1_6_what_waits_behind_a_blocked_task_runs_once_when_that_is_lifted(
    assemble: Callable[..., Crew], broker_url: str
) -> None:
    """The relay hears of it at once, a worker with its next heartbeat: it puts back what it had refused."""
    crew = assemble(Crew, broker_url, **QUICK, poison_heartbeat_interval=5.0, poison_activation_interval=20.0)
    with crew.worker(pool="solo"):
        crew.send("healthy", 100)
        crew.await_that(lambda: crew.done() == 1, "it does not run")
        crew.quarantine.block_task("fleet.healthy")
        crew.await_that(lambda: "task fleet.healthy is blocked" in crew.log_text(), "not in force")
        for n in range(12):
            crew.send("healthy", n, 0.0)
        crew.await_that(lambda: any(each.cause for each in _desk(crew).lanes()), "the relay has not tried")
        crew.quarantine.unblock(RuleKind.TASK, "fleet.healthy")
        crew.await_that(lambda: crew.done() + len(crew.quarantine.list()) == 13, "some are not done")
    assert not crew.quarantine.list(), "diverted by a rule that was taken back"
    assert crew.marks.count("healthy", "start") == dict.fromkeys([100, *range(12)], 1)
