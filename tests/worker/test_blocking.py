"""A poison that is sent again under new ids does not hurt any more (NEW-3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from kombu.message import Message

from celery_poison import Quarantine
from celery_poison.keep.arguments import fingerprint_of
from celery_poison.model import MessageRecord
from celery_poison.plugin import plugin_of
from celery_poison.rules.blocks import Rule, RuleKind
from tests import PATIENCE, sampled
from tests.worker.conftest import Crew

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
REDIS_FIRST = pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
AFTER_TWO = {"poison_block_fingerprint_after": 2}


def _kept(crew: Crew, *ids: str) -> list[MessageRecord]:
    """Wait until all of these are in quarantine; return their records in this order."""

    def found() -> dict[str, MessageRecord]:
        return {record.id: record for record in crew.quarantine.list()}

    crew.await_that(lambda: set(ids) <= set(found()), f"not all of {len(ids)} are in quarantine")
    return [found()[id] for id in ids]


def _send(crew: Crew, n: int, count: int) -> list[str]:
    return [crew.send("kill_child", n).id for _ in range(count)]


@REDIS_FIRST
def test_NEW_3_a_poison_that_is_sent_again_and_again_kills_nobody_once_it_was_convicted_often_enough(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, **AFTER_TWO)
    with crew.worker(concurrency=2) as worker:
        worker.wait_ready()
        convicted = _kept(crew, *[id for _ in range(2) for id in _send_and_wait(crew, 7)])
        assert [(record.cause, record.crashes) for record in convicted] == [("signal:9", 2)] * 2
        (rule,) = Quarantine(crew.app).blocks().rules
        assert (rule.name, rule.task) == (convicted[0].fingerprint, "fleet.kill_child")
        deaths = len(crew.events("crashed"))

        for record in _kept(crew, *_send(crew, 7, 20)):
            assert (record.cause, record.crashes, record.strikes) == ("blocked", 0, 0)
            assert record.reason == f"fingerprint {rule.name} is blocked after 2 convictions"
        assert len(crew.events("crashed")) == deaths == 4
        assert crew.marks.count("kill_child", "start") == {7: 4}

        crew.marks.repair()
        harmless = crew.send("kill_child", 8)
        assert harmless.get(timeout=PATIENCE) == "repaired", "other arguments of the same task run"
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1

        released = crew.quarantine.list()[0]
        assert crew.quarantine.release([released.mid])[0].done
        assert crew.app.AsyncResult(released.id).get(timeout=PATIENCE) == "repaired", "a person goes before"

        Quarantine(crew.app).unblock(RuleKind.FINGERPRINT, rule.name)
        crew.await_that(lambda: "is not blocked any more" in crew.log_text(), "it is not unblocked")
        assert crew.send("kill_child", 7).get(timeout=PATIENCE) == "repaired"
    assert [entry["note"] for entry in crew.events("blocked", "unblocked")] == [
        f"fingerprint {rule.name} after 2 convictions",
        f"fingerprint {rule.name}",
    ]
    crew.await_that(crew.nothing_runs, "the ledger has not forgotten them")


def _send_and_wait(crew: Crew, n: int) -> list[str]:
    ids = _send(crew, n, 1)
    _kept(crew, *ids)
    return ids


def _in_force(crew: Crew, rule: Rule) -> None:
    crew.await_that(lambda: rule.reason in crew.log_text(), f"not in force: {rule.reason}")


def _fingerprint(crew: Crew, task: str, *args: Any, **kwargs: Any) -> str:
    """What a worker makes of these arguments; there must have been one."""
    ledger = plugin_of(crew.app).open_ledger()
    secret: Any = ledger.client.hget(ledger.keys.meta, "secret")
    body = json.dumps([args, kwargs, {}])
    message = Message(body=body, headers={}, content_type="application/json")
    own = getattr(crew.app.tasks[f"fleet.{task}"], "fingerprint", None)
    return fingerprint_of(message, f"fleet.{task}", secret, own)


def test_NEW_3_messages_that_bring_a_tiny_time_limit_block_no_innocent_call(
    new_crew: Callable[..., Crew], redis_url: str
) -> None:
    crew = new_crew(redis_url, **AFTER_TWO)
    with crew.worker():
        kept = _kept(crew, *[crew.send("hard_limit", 7, time_limit=0.2).id for _ in range(2)])
        assert [(record.cause, record.crashes) for record in kept] == [("time_limit", 2)] * 2
        assert kept[0].fingerprint == kept[1].fingerprint and not Quarantine(crew.app).blocks().rules
        crew.marks.repair()
        assert crew.send("hard_limit", 7).get(timeout=PATIENCE) == "repaired"


def test_NEW_3_what_a_worker_has_received_already_does_not_run_either(crew: Crew) -> None:
    with crew.worker(concurrency=1, args=["--prefetch-multiplier=10"]) as worker:
        worker.wait_ready()
        crew.send("waits_for_repair", 0)
        crew.await_that(lambda: crew.starts("waits_for_repair"), "it does not run")
        like, unlike = crew.send("healthy", 7), crew.send("healthy", 8)
        crew.await_that(lambda: crew.log_text().count("fleet.healthy") >= 2, "not received")
        fingerprint = _fingerprint(crew, "healthy", 7)
        _in_force(
            crew, Quarantine(crew.app).block_fingerprint(fingerprint, task="fleet.healthy", actor="ann")
        )
        crew.marks.repair()
        (kept,) = _kept(crew, like.id)
        assert (kept.cause, kept.reason) == ("blocked", f"fingerprint {fingerprint} is blocked by ann")
        assert unlike.get(timeout=PATIENCE) == 8, "its place in the pool was given back"
        assert crew.marks.count("healthy", "start") == {8: 1}
        crew.await_that(crew.nothing_runs, "the ledger has not forgotten them")


@BOTH
def test_NEW_3_a_blocked_call_is_the_same_in_other_words_and_packed(crew: Crew) -> None:
    healthy = crew.app.tasks["fleet.healthy"]
    with crew.worker() as worker:
        worker.wait_ready()
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        fingerprint = _fingerprint(crew, "healthy", 7)
        _in_force(crew, Quarantine(crew.app).block_fingerprint(fingerprint, task="fleet.healthy"))
        alike = [
            crew.send("healthy", 7),
            healthy.apply_async((), {"n": 7}),
            crew.send("healthy", 7, 0.02),
            healthy.apply_async((7,), {"seconds": 0.02}),
            healthy.apply_async((7,), compression="gzip"),
            healthy.apply_async((), {"seconds": 0.02, "n": 7}, compression="bzip2"),
        ]
        others = [crew.send("healthy", 8), crew.send("healthy", 7, 0.01)]
        assert [each.get(timeout=PATIENCE) for each in others] == [8, 7]
        kept = _kept(crew, *[each.id for each in alike])
        assert {record.cause for record in kept} == {"blocked"} and len(crew.quarantine.list()) == 6
        crew.await_that(crew.nothing_runs, "the ledger has not forgotten them")
    assert len(crew.marks.all("healthy", "start")) == 3


@BOTH
def test_NEW_3_a_blocked_task_does_not_run_until_that_is_over_and_released_ones_do_with_their_retries(
    crew: Crew,
) -> None:
    quarantine = Quarantine(crew.app)
    rule = quarantine.block_task("fleet.asks", actor="ann", note="supplier is down")
    with crew.worker():
        (kept,) = _kept(crew, crew.send("asks", "retry-once").id)
        assert kept.reason == "task fleet.asks is blocked by ann: supplier is down" == rule.reason
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        assert not crew.starts("asks")

        crew.quarantine.release([kept.mid])
        assert crew.app.AsyncResult(kept.id).get(timeout=PATIENCE)
        assert crew.starts("asks") == 2, "neither it nor its retry was stopped"

        _in_force(crew, quarantine.block_task("fleet.asks", actor="bob", seconds=2))
        sent = crew.send("asks", "nothing")
        _kept(crew, sent.id)
        crew.await_that(lambda: not quarantine.blocks().rules, "the block is not over")
        assert crew.send("asks", "nothing").get(timeout=PATIENCE), "over without any word from the ledger"


@pytest.mark.parametrize("pool", sampled(["prefork", "gevent"], ["threads"]))
def test_NEW_3_a_users_function_that_raises_or_hangs_stops_no_message_and_no_worker(
    crew: Crew, pool: str
) -> None:
    if pool == "gevent":
        pytest.importorskip("gevent")
    with crew.worker(pool=pool) as worker:
        worker.wait_ready()
        fingerprint = _fingerprint(crew, "tells", "order-7", "anything")
        _in_force(crew, Quarantine(crew.app).block_fingerprint(fingerprint, task="fleet.tells", actor="ann"))
        (kept,) = _kept(crew, crew.send("tells", "order-7", "something else").id)
        assert (kept.cause, kept.fingerprint) == ("blocked", fingerprint)
        assert crew.send("tells", "order-8", "").get(timeout=PATIENCE) == "order-8"
        assert crew.send("tells", "order-7", "raises").get(timeout=PATIENCE) == "order-7"
        assert crew.send("tells", "order-7", "hangs").get(timeout=PATIENCE) == "order-7"
        assert crew.send("tells", "order-7", "").get(timeout=PATIENCE) == "order-7", "it is not asked again"
        crew.await_that(crew.nothing_runs, "the ledger has not forgotten them")
        told = crew.quarantine.queries.workers
        crew.await_that(lambda: [each.ledger_errors for each in told(1000)] == [2], "not both counted")
    told_once = ("the fingerprint function of fleet.tells failed", "took longer than 1 s")
    assert [crew.log_text().count(sentence) for sentence in told_once] == [1, 1]
    assert len(crew.quarantine.list()) == 1


@REDIS_FIRST
def test_NEW_3_a_message_on_which_the_function_kills_its_worker_ends_in_quarantine(crew: Crew) -> None:
    with crew.supervise():
        crew.send("healthy", 1).get(timeout=60)
        rule = Quarantine(crew.app).block_fingerprint("0" * 16, task="fleet.tells", actor="ann")
        _in_force(crew, rule)
        (kept,) = _kept(crew, crew.send("tells", "order-7", "dies").id)
        assert (kept.cause, kept.crashes) == ("receive", 2)
        assert not crew.starts("tells")


@REDIS_FIRST
def test_NEW_3_a_body_that_is_no_json_is_neither_blocked_nor_does_it_stop_anything(crew: Crew) -> None:
    with crew.worker() as worker:
        worker.wait_ready()
        rule = Quarantine(crew.app).block_fingerprint("0" * 16, actor="ann")
        assert rule.task == "", "of any task"
        _in_force(crew, rule)
        with crew.app.producer_pool.acquire() as producer:
            for n, body in enumerate((b"[[", b"[1, 2, 3]")):
                headers = {"id": f"garbage-{n}", "task": "fleet.healthy", "lang": "py"}
                how = {"content_type": "application/json", "content_encoding": "utf-8"}
                producer.publish(body, routing_key="celery", headers=headers, **how)
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        assert not [record for record in crew.quarantine.list() if record.cause == "blocked"]
