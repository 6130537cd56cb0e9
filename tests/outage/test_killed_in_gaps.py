"""A worker killed between two steps of its own: nothing is lost, run twice, or held against anybody."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery.result import AsyncResult

from celery_poison.testing import RedisServer, Worker
from tests import PATIENCE, sampled
from tests.outage.conftest import Site
from tests.outage.dying import DIES_AT

NewSite = Callable[..., Site]
REDIS = pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
#: Between the steps by which a worker that leaves gives back what it has not begun.
STEPS = [
    "celery_poison.worker.leaving:Leaving._waiting",
    "celery_poison.broker.redis.receiving:OwnedChannel.finish_poll",
    "celery_poison.worker.leaving:_put_back",
    "celery_poison.worker.leaving:_put_back#3",
    "celery_poison.broker.redis.book:Book.tell",
]


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_NEW_9_a_trial_that_has_ended_is_not_run_again_when_its_worker_dies_before_it_acknowledges(
    new_site: NewSite, broker_url: str
) -> None:
    site = new_site(broker_url)
    with site.worker("w1") as w1:
        w1.wait_ready()
        sent = site.send("where", 1, PATIENCE, 0)
        site.await_that(lambda: site.starts()[1] == 1, "it runs")
        site.kill(w1)
    with site.worker("w2", env={DIES_AT: "celery_poison.worker.request:GuardedRequest.acknowledge"}) as w2:
        w2.wait_ready()
        site.await_that(lambda: not w2.is_alive(), "it dies when its trial has ended")
        site.killed |= {w2.main_pid}
    assert site.ends()[1] == 1 and site.marks.count("worker", "dies")
    with site.worker("w3") as w3:
        w3.wait_ready()
        site.await_that(lambda: len(site.events("worker_lost")) == 2, "its death is noticed")
        assert site.result_of(sent) == "w2@test"
        assert site.result_of(site.send("where", 2, 0)) == "w3@test"
        site.await_that(site.is_over, "all is on record")
        site.await_that(lambda: not site.suspects(), "it is cleared")
    assert site.starts()[1] == 2 and site.ends()[1] == 1


@REDIS
@pytest.mark.parametrize("step", sampled(STEPS[-1:], STEPS[:-1]))
def test_NEW_25_a_worker_killed_while_it_gives_back_what_it_has_not_begun_loses_nothing(
    new_site: NewSite, broker_url: str, step: str
) -> None:
    site = new_site(broker_url, worker_prefetch_multiplier=4)
    with site.worker("w1", concurrency=1, env={DIES_AT: step}) as w1:
        sent = _let_one_run_and_others_wait(site, w1, 5)
        w1.terminate()
        site.await_that(lambda: not w1.is_alive(), "it is killed while it leaves")
        site.kill(w1)
    _all_end_on_another_worker(site, sent)
    assert not site.suspects()


@REDIS
def test_NEW_9_a_worker_killed_while_its_book_is_put_right_after_an_outage_loses_nothing(
    new_site: NewSite, new_server: Callable[..., RedisServer], broker_url: str
) -> None:
    server = new_server(appendonly="yes", appendfsync="always")
    site = new_site(server.url())
    with site.worker(
        "w1", concurrency=1, env={DIES_AT: "celery_poison.broker.redis.book:Book._retract"}
    ) as w1:
        sent = _let_one_run_and_others_wait(site, w1, 3)
        server.kill()
        site.await_that(lambda: "the broker does not answer" in w1.log_text(), "the outage is noticed")
        server.start()
        site.await_that(lambda: not w1.is_alive(), "it is killed when Redis is back")
        site.kill(w1)
    _all_end_on_another_worker(site, sent)


def _let_one_run_and_others_wait(site: Site, worker: Worker, others: int) -> list[AsyncResult]:
    worker.wait_ready()
    sent = [site.send("where", 1, PATIENCE, 0)]
    site.await_that(lambda: site.starts()[1] == 1, "one runs")
    sent += [site.send("where", n, 0) for n in range(2, 2 + others)]
    site.await_that(lambda: worker.log_text().count("received") >= 4, "others wait")
    return sent


def _all_end_on_another_worker(site: Site, sent: list[AsyncResult]) -> None:
    assert site.marks.count("worker", "dies")
    with site.worker("w2") as w2:
        w2.wait_ready()
        assert {site.result_of(each) for each in sent} == {"w2@test"}
        site.await_that(site.is_over, "all is on record")
    assert {n: many for n, many in site.starts().items() if many > 1} == {1: 2}
