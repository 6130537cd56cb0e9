"""What a run held that was cut off may be taken still: put-backs after a death wait for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from celery_poison.model import History
from celery_poison.worker.pauses import are_all_after_cut, pause_after_cut, pause_before
from tests import PATIENCE, sampled
from tests.worker.conftest import Crew


@pytest.mark.matrix
@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_NEW_26_who_finds_the_lock_taken_of_a_run_that_ended_with_its_worker_is_put_back_until_that_is_free(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, poison_activation_interval=8.0)
    with crew.worker(), crew.worker("w2") as other:
        other.wait_ready()
        assert crew.send("locks", "its worker").get(timeout=PATIENCE) is None
        assert crew.log_text().count("had cut a run off") < 6
        crew.await_that(lambda: not crew.quarantine.list(candidates=True), "cleared")
    assert not crew.quarantine.list() and len(crew.events("worker_lost")) == 1


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_NEW_26_who_finds_the_lock_of_its_dead_run_taken_is_put_back_until_that_is_free(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, poison_activation_interval=8.0)
    with crew.worker():
        innocent, guilty = crew.send("locks"), crew.send("asks", "rollback")
        assert innocent.get(timeout=PATIENCE) is None
        crew.await_that(lambda: len(crew.quarantine.list()) == 1, "kept")
        assert "in 2 s, after SIGKILL had cut a run off" in crew.log_text()
    assert [message.id for message in crew.quarantine.list()] == [guilty.id], (
        "what nothing cut off goes at once"
    )


def test_WAS_3_pauses_before_put_backs_grow_up_to_a_bound() -> None:
    pauses = [pause_before(failures, 0.5) for failures in (1, 2, 3, 10, 10**12)]
    assert pauses == [0.5, 1.0, 2.0, 256.0, 300.0]
    assert pause_before(3, 0.0) == 0 and pause_before(1, 900.0) == pause_before(9, 900.0) == 900.0


def test_NEW_26_pauses_after_a_death_begin_with_it_and_grow_beyond_the_activation_interval() -> None:
    history = History(failures=3, failed_before=2, cut_off="m", cut_off_by="signal:9")
    pauses = [pause_after_cut(replace(history, failures=failures), 10.0) for failures in (3, 4, 5, 6, 10**9)]
    assert pauses == [2.5, 10.0, 40.0, 160.0, 300.0]
    assert pause_after_cut(replace(history, cut_off=""), 10.0) == 0, "nothing has cut it off"
    assert pause_after_cut(replace(history, failures=9), 900.0) == 900.0
    assert not are_all_after_cut(history) and are_all_after_cut(replace(history, old_failures=2))
    assert not are_all_after_cut(History(failures=5))
