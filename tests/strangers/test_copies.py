"""What a publisher sends twice, since it had no answer, runs once where that can be known (TP1-8)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from celery.signals import before_task_publish

from celery_poison.headers import MARK, MID, TRIAL
from celery_poison.plugin import _stamp
from celery_poison.testing import wait_until
from tests import PATIENCE, sampled
from tests.strangers.ids import Ids, build
from tests.strangers.lossy import LossyLink

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)


@pytest.fixture
def ids(assemble: Callable[..., Any], broker_url: str) -> Ids:
    fleet: Ids = partial(assemble, Ids)(broker_url, worker_prefetch_multiplier=1)
    return fleet


@contextmanager
def _headers(**ours: Any) -> Iterator[None]:
    """What is published in here bears these headers, whatever the plugin thinks of it."""

    def write(headers: dict[str, Any], **_: Any) -> None:
        headers.update(ours)

    before_task_publish.connect(write, weak=False)
    try:
        yield
    finally:
        before_task_publish.disconnect(write)


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_TP1_8_a_message_whose_confirmation_was_lost_runs_once(ids: Ids) -> None:
    with LossyLink(ids.broker_url) as link, ids.worker(concurrency=1), ids.worker("w2", concurrency=1) as two:
        options = {"broker_transport_options": {"confirm_publish": True}}
        producer = build({**ids.environ(), "BROKER_URL": link.url})
        producer.conf.update(options)
        producer.tasks["fleet.work"].delay(0).get(timeout=PATIENCE)  # connected
        two.wait_ready()
        link.arm()
        sends = threading.Thread(target=producer.tasks["fleet.work"].delay, args=(1, 0.0, True))
        sends.start()
        wait_until(link.lost.is_set, timeout=PATIENCE, what="the broker has it, and its answer is lost")
        ids.await_that(lambda: ids.begun().get(1), "runs")
        link.heal()
        sends.join()
        ids.await_that(
            lambda: ids.quarantine.queries.totals()["parked"], "the copy is known for one, and waits"
        )
        ids.marks.open_gate()
        ids.await_that(lambda: ids.events("duplicate"), "dropped")
        ids.await_that(ids.nothing_runs, "forgotten")
        producer.close()
    assert ids.begun() == {0: 1, 1: 1}


@BOTH
def test_TP1_8_two_copies_that_come_to_one_worker_run_one_after_the_other_at_most(ids: Ids) -> None:
    """Neither is marked: no connection error was seen. Redis' client, for one, sends again by itself."""
    with _headers(poison_mid="m"):
        first = ids.send("work", 1, 0.0, True)
        ids.send("work", 1, 0.0, True, task_id=first.id)
    with ids.worker(concurrency=2):
        ids.await_that(lambda: ids.quarantine.queries.totals()["parked"], "the second copy waits")
        assert ids.begun() == {1: 1}
        ids.marks.open_gate()
        ids.await_that(lambda: ids.events("duplicate"), "and is dropped")
        ids.await_that(ids.nothing_runs, "forgotten")
    assert ids.begun() == {1: 1}


def test_TP1_8_an_error_while_it_is_published_marks_what_is_sent_again_and_nothing_else() -> None:
    errors = list[Exception]()
    policy: dict[str, Any] = {"errback": lambda error, interval: errors.append(error)}
    headers: dict[str, Any] = {"id": "i", "task": "t"}
    app = build({"BROKER_URL": "memory://", "POISON_REDIS_URL": "redis://127.0.0.1:1"})
    app.finalize()
    _stamp("fleet.work", headers=headers, retry_policy=policy)
    assert MARK not in headers
    policy["errback"](OSError("gone"), 0)
    assert headers[MARK] == 1 and len(errors) == 1, "whoever asked to hear of errors does"
    app.close()


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
@pytest.mark.parametrize("how", ["delivered again", "released"])
def test_EMS_7_every_start_but_the_first_is_told_that_it_was_redelivered(ids: Ids, how: str) -> None:
    with ids.worker():
        sent = ids.send("hears", how)
        if how == "released":
            ids.await_that(ids.quarantine.list, "in quarantine")
            ids.quarantine.release([ids.quarantine.list()[0].mid])
        ids.await_that(lambda: len(ids.marks.all("told")) == 2, "ran twice")
        sent.get(timeout=PATIENCE)
    assert [mark.n for mark in ids.marks.all("told")] == [False, True]


@BOTH
def test_a_sender_cannot_have_retries_or_what_is_parked_go_to_a_queue_of_its_choice(ids: Ids) -> None:
    with _headers(**{TRIAL: "elsewhere", MARK: 1}):
        ids.send("hears", "retried")
    with ids.worker():
        ids.await_that(lambda: len(ids.marks.all("told")) == 2, "retried in its own queue")
        ids.await_that(ids.nothing_runs, "forgotten")
    assert {entry["queue"] for entry in ids.events("finished")} == {"celery"}


@BOTH
def test_a_forged_mid_of_another_message_drops_neither(ids: Ids) -> None:
    """Its stamp is for another task id: nobody else can have it."""
    with ids.worker():
        victim = ids.send("work", 1, 0.0, True)
        ids.await_that(lambda: ids.begun(), "runs")
        ids.await_that(lambda: not ids.nothing_runs(), "on record")
        ((mid, _, _),) = ids.quarantine.queries.running()
        with _headers(**{MID: mid, MARK: 1}):
            ids.send("work", 2)
        ids.await_that(lambda: ids.ended() == {2: 1}, "it runs as a message of its own")
        ids.marks.open_gate()
        assert victim.get(timeout=PATIENCE) == 1
        ids.await_that(ids.nothing_runs, "forgotten")
    assert not ids.events("duplicate", "parked")
