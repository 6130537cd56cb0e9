"""What holds for the messages of one queue, and where in it a rolled-back message goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_poison.model import MessageRecord
from tests import PATIENCE, sampled
from tests.worker.conftest import Crew


def _kept(crew: Crew, id: str) -> MessageRecord:
    crew.await_that(lambda: [each for each in crew.quarantine.list() if each.id == id], "in quarantine")
    (record,) = [each for each in crew.quarantine.list() if each.id == id]
    return record


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_WAS_3_a_queue_has_limits_of_its_own_and_a_rolled_back_message_is_the_first_in_line(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    of_slow = {"max_crashes": 1, "keep_failures": True}
    crew = new_crew(broker_url, poison_queues={"slow": of_slow}, worker_prefetch_multiplier=1)
    rolled_back = crew.send("asks", "rollback-once", queue="slow")
    behind = [crew.send("asks", f"behind {n}", queue="slow") for n in range(3)]
    with crew.worker(concurrency=1, queues=["celery", "slow"]):
        assert rolled_back.get(timeout=PATIENCE)[2] == 1, "it was put back once"
        assert [len(each.get(timeout=PATIENCE)) for each in behind] == [6, 6, 6]
        order = [mark.n for mark in crew.marks.all("asks", "start")]
        others = [n for n in order if n != "rollback-once"]
        assert order[0] == "rollback-once" and others == ["behind 0", "behind 1", "behind 2"]
        # RabbitMQ makes room for the next message before it puts one back, if it is busy.
        assert order.index("rollback-once", 1) <= (1 if broker_url.startswith("redis") else 2)

        in_slow, elsewhere = crew.send("kill_child", queue="slow"), crew.send("kill_child")
        assert (_kept(crew, in_slow.id).crashes, _kept(crew, elsewhere.id).crashes) == (1, 2)
        failed = crew.send("asks", "raise", queue="slow")
        assert _kept(crew, failed.id).cause == "failure", "also what its own process decides"
        with pytest.raises(ValueError, match="an ordinary bug"):
            crew.send("asks", "raise").get(timeout=PATIENCE)

        version = crew.quarantine.set_policy("queue:celery", {"max_crashes": 1}).version
        crew.await_that(lambda: f"policies of version {version} are in force" in crew.log_text(), "in force")
        assert _kept(crew, crew.send("kill_child").id).crashes == 1
        assert len(crew.quarantine.list()) == 4


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_WAS_3_a_message_that_is_rolled_back_for_later_holds_up_nobody_and_comes_back_then(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, worker_prefetch_multiplier=1, poison_rollback_pause=1.0)
    with crew.worker(concurrency=1):
        later = crew.send("asks", "later-once")
        others = [crew.send("asks", f"behind {n}") for n in range(3)]
        by_itself = crew.send("asks", "rollback-once")
        assert later.get(timeout=PATIENCE)[2] == by_itself.get(timeout=PATIENCE)[2] == 1
        assert [len(each.get(timeout=PATIENCE)) for each in others] == [6, 6, 6]
        order = [mark.n for mark in crew.marks.all("asks", "start")]
        assert order[:2] == ["later-once", "behind 0"] and order.count("later-once") == 2
        assert _away_for(crew, later.id) >= 3000 and _away_for(crew, by_itself.id) >= 1000
        crew.await_that(crew.nothing_runs, "forgotten")
    assert not crew.quarantine.list()


def _away_for(crew: Crew, id: str) -> int:
    """Milliseconds from the rollback to the end of the next run, which is journalled after its result."""

    def told() -> list[Any]:
        return [entry for entry in crew.events("rolled_back", "finished") if entry["id"] == id]

    crew.await_that(lambda: len(told()) == 2, "journalled")
    back, again = (int(entry["at"].partition("-")[0]) for entry in told())
    return abs(again - back)
