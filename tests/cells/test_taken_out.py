"""A person decides about suspects, on trial or before it, and need not wait for their verdict (SAP-7)."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from celery_poison.desk.survey import overview
from celery_poison.ledger.requested_suspects import want
from tests import PATIENCE, sampled
from tests.cells.conftest import Court

SETTINGS = {"poison_heartbeat_interval": 0.5, "poison_activation_interval": 5.0, "poison_trial_cells": 2}
BROKERS = pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)


@pytest.fixture
def court(assemble: Callable[..., Court], broker_url: str) -> Court:
    return assemble(Court, broker_url, **SETTINGS)


@BROKERS
def test_SAP_7_two_that_hang_on_trial_are_given_up_and_the_others_get_their_turn(court: Court) -> None:
    hanging = [court.suspect("trial.hangs", n) for n in range(2)]
    with court.worker(concurrency=2):
        court.await_start("hangs", 2)
        others = [court.suspect("trial.tells", n) for n in range(3)]
        court.await_that(lambda: len(court.suspects()) == 5, "five candidates")
        seen = overview(court.app)
        assert (seen.candidates, seen.on_trial) == (5, 2)
        assert seen.suspected_since is not None and seen.at - seen.suspected_since < PATIENCE
        (refused,) = court.quarantine.release([hanging[0].id])
        assert not refused.done and "on trial now" in refused.error
        assert court.quarantine.fail([hanging[0].id], actor="ann", note="it hangs")[0].done
        assert court.quarantine.discard([hanging[1].id], actor="ann")[0].done
        assert [len(other.get(timeout=PATIENCE)) > 0 for other in others] == [True] * 3
        court.await_acquittal()
        assert hanging[0].state == "FAILURE"
    kept = court.quarantine.list(state="FAIL")
    assert {record.id for record in kept} == {result.id for result in hanging}
    assert {record.reason for record in kept} == {
        "taken out of its trial by ann: it hangs",
        "taken out of its trial by ann",
    }
    assert all(record.strikes == 1 for record in kept), "that it was ended is held against nobody"
    assert len(court.marks.all("hangs", "start")) == 2, "nor did it run again"


@BROKERS
@pytest.mark.parametrize("verb", ["fail", "discard", "release"])
def test_SAP_7_one_that_waits_for_its_trial_is_decided_about_as_well(verb: str, court: Court) -> None:
    hanging = [court.suspect("trial.hangs", n) for n in range(2)]
    with court.worker(concurrency=2):
        court.await_start("hangs", 2)
        waits = court.suspect("trial.tells", 1)
        court.await_that(lambda: len(court.suspects()) == 3, "it waits")
        (outcome,) = getattr(court.quarantine, verb)([waits.id], actor="ann")
        assert outcome.done, outcome
        outcomes = court.quarantine.discard([each.id for each in hanging])
        assert all(each.done for each in outcomes), f"{outcomes}\n{court.evidence()}"
        if verb == "release":
            assert waits.get(timeout=PATIENCE)
            court.await_acquittal()
        else:
            assert not court.marks.all("tells", "start")
    state = None if verb == "release" else "FAIL"
    kept = {record.id: record.state for record in court.quarantine.list(state="FAIL")}
    assert kept.get(waits.id) == state


@BROKERS
def test_SAP_7_a_worker_that_is_killed_before_it_hands_over_leaves_that_to_the_next(court: Court) -> None:
    hanging = court.suspect("trial.sleeps", 100.0)
    with court.worker(concurrency=1) as first:
        court.await_start("sleeps")
        first.send_signal(signal.SIGSTOP)  # it hears of no wish any more
        want(court.ledger, [hanging.id], "taken out of its trial by ann")
        first.kill_group()
        first.wait()
    with court.worker("w2", concurrency=1) as second:
        court.await_that(court.quarantine.list, "handed over")
        assert court.suspect("trial.tells", 1).get(timeout=PATIENCE)
        assert second.is_alive()
    (kept,) = court.quarantine.list()
    assert (kept.id, kept.reason) == (hanging.id, "taken out of its trial by ann")


def test_SAP_7_without_a_worker_what_is_with_the_broker_cannot_be_taken_and_the_sentence_says_so(
    court: Court,
) -> None:
    waits = court.suspect("trial.tells", 1)
    court.quarantine.queries.meta()
    with court.worker(concurrency=1):
        court.await_acquittal()
    again = court.suspect("trial.tells", 2, queue="nowhere")
    (refused,) = court.quarantine.fail([again.id])
    assert not refused.done and "no worker is alive" in refused.error and waits.state == "SUCCESS"
