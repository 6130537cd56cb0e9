"""Groups, chains and chords with one poison in them end as Celery documents: after release and after fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from celery_poison.broker.publish import Publisher
from celery_poison.keep.stored_message import publish_release, stored_message
from celery_poison.plugin import plugin_of
from tests import PATIENCE
from tests.worker.conftest import Crew


def _member(crew: Crew, n: int) -> Any:
    return crew.app.tasks["fleet.adds"].si([], n)


def _poison(crew: Crew) -> Any:
    return crew.app.tasks["fleet.recovers"].si()


def _total(crew: Crew) -> Any:
    return crew.app.tasks["fleet.adds"].s()


def _caught(crew: Crew) -> str:
    crew.await_that(crew.quarantine.list, "in quarantine")
    (kept,) = crew.quarantine.list()
    return kept.mid


def _release(crew: Crew) -> None:
    mid = _caught(crew)
    crew.marks.repair()
    (outcome,) = crew.quarantine.release([mid], actor="ann", note="repaired")
    assert outcome.done, outcome


def _fail(crew: Crew) -> None:
    (outcome,) = crew.quarantine.fail([_caught(crew)], actor="ann", note="hopeless")
    assert outcome.done, outcome


def test_SAP_7_a_chord_finishes_after_its_poison_was_released(crew: Crew) -> None:
    result = chord([_member(crew, 1), _poison(crew), _member(crew, 2)])(_total(crew))
    with crew.worker():
        _release(crew)
        assert result.get(timeout=PATIENCE) == 1003


def test_SAP_7_a_chord_fails_after_its_poison_was_failed(crew: Crew) -> None:
    result = chord([_member(crew, 1), _poison(crew), _member(crew, 2)])(_total(crew))
    with crew.worker():
        _fail(crew)
        crew.await_that(lambda: result.state == "FAILURE", "the caller is told")
    assert isinstance(result.result, ChordError)


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_NEW_6_a_chord_finishes_with_what_the_changed_copy_of_its_poison_returns(crew: Crew) -> None:
    too_large = crew.app.tasks["fleet.small"].si("x" * 2000)
    result = chord([_member(crew, 1), too_large])(_total(crew))
    with crew.worker():
        mid = _caught(crew)
        outcome = crew.quarantine.edit(mid, set={"text": "four"}, actor="ann", note="it was too long")
        assert outcome.done, outcome
        assert result.get(timeout=PATIENCE) == 1 + len("four")
        crew.await_that(lambda: crew.events("cleared"), "cleared")
    told = {
        entry["event"]: entry["mid"] for entry in crew.events() if entry["event"] in ("copied", "cleared")
    }
    assert told == {"copied": outcome.copy, "cleared": outcome.copy}


def test_SAP_7_a_group_finishes_after_its_poison_was_released(crew: Crew) -> None:
    result = group([_member(crew, 1), _poison(crew)])()
    with crew.worker():
        _release(crew)
        assert result.get(timeout=PATIENCE) == [1, 1000]


def test_SAP_7_a_group_fails_after_its_poison_was_failed(crew: Crew) -> None:
    result = group([_member(crew, 1), _poison(crew)])()
    with crew.worker():
        _fail(crew)
        with pytest.raises(Exception, match="given up in quarantine"):
            result.get(timeout=PATIENCE)


def test_SAP_7_a_chain_goes_on_after_its_poison_was_released(crew: Crew) -> None:
    result = chain(_member(crew, 1), _poison(crew), _total(crew))()
    with crew.worker():
        _release(crew)
        assert result.get(timeout=PATIENCE) == 1000


def test_SAP_7_a_chain_ends_after_its_poison_was_failed_and_nobody_waits_for_ever(crew: Crew) -> None:
    result = chain(_member(crew, 1), _poison(crew), _total(crew))()
    with crew.worker():
        _fail(crew)
        with pytest.raises(Exception, match="given up in quarantine"):
            result.get(timeout=PATIENCE)


def test_SAP_7_the_errback_of_a_failed_message_is_called(crew: Crew) -> None:
    task = crew.app.tasks["fleet.recovers"]
    result = task.apply_async(link_error=crew.app.tasks["fleet.told"].s())
    with crew.worker():
        _fail(crew)
        with pytest.raises(Exception, match="given up in quarantine"):
            result.get(timeout=PATIENCE)
        crew.await_that(lambda: crew.starts("told") == 1, "errback called")


def test_SAP_3_a_chunk_of_a_guarded_task_that_kills_is_quarantined_released_and_counts(crew: Crew) -> None:
    """A chunk is a message of ``celery.starmap``, which acknowledges early by Celery's default."""
    tasks = crew.app.tasks
    result = tasks["fleet.recovers"].chunks([(1,), (2,)], 2)()
    with crew.worker() as worker:
        assert tasks["fleet.adds"].starmap([(0, 1), (0, 2)]).delay().get(timeout=PATIENCE) == [1, 2]
        crew.await_that(crew.quarantine.list, "in quarantine")
        (kept,) = crew.quarantine.list()
        assert (kept.task, kept.strikes, kept.cause) == ("celery.starmap", 2, "signal:9")
        _release(crew)
        assert result.get(timeout=PATIENCE) == [[1000, 1000]]
    assert "celery.starmap" not in worker.log_text().partition("ledger redis")[0]
    assert not [each for each in crew.quarantine.policies().tasks if each.task.startswith("celery.")]


def test_NEW_6_a_released_message_runs_on_probation_and_one_more_death_brings_it_back(crew: Crew) -> None:
    crew.send("kill_child")
    with crew.worker():
        mid = _caught(crew)
        (outcome,) = crew.quarantine.release([mid], actor="ann", note="let us see")
        assert outcome.done
        crew.await_that(lambda: crew.starts("kill_child") == 3, "ran once more")
        crew.await_that(lambda: [r for r in crew.quarantine.list() if r.releases == 1], "back in quarantine")
    (kept,) = crew.quarantine.list()
    assert (kept.mid, kept.crashes, kept.strikes) == (mid, 3, 1)
    told = [entry for entry in crew.events() if entry["mid"] == mid]
    # Without a memory limit of its own a worker counts the kernel's kills on the whole machine, and another
    # test has the kernel kill: a trial that ends by SIGKILL within the second after proves nothing.
    kinds = [entry["event"] for entry in told if entry["event"] != "interrupted"]
    assert kinds == ["crashed", "crashed", "quarantined", "released", "crashed", "quarantined"], told


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
@pytest.mark.parametrize("trial", ["cell", "off"])
def test_NEW_6_a_message_released_with_its_counts_is_not_judged_by_them_and_one_more_death_convicts(
    trial: str, new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, poison_trial=trial)
    crew.send("kill_child")
    with crew.worker():
        mid = _caught(crew)
        number = plugin_of(crew.app).open_ledger().decisions.decide(mid, "keep", "ann")
        raw, record = crew.quarantine.queries.message(mid), crew.quarantine.get(mid)
        with Publisher(crew.app) as publisher:
            # The operator died after that: the worker completes the release, and knows how it was meant.
            publish_release(publisher, stored_message(raw), record.queue, number)
        crew.await_that(lambda: crew.starts("kill_child") == 3, "ran once more")
        crew.await_that(lambda: [r for r in crew.quarantine.list() if r.releases == 1], "back in quarantine")
    (kept,) = crew.quarantine.list()
    assert (kept.deliveries, kept.crashes, kept.strikes) == (3, 3, 3)
    (told,) = crew.events("released")
    assert (told["strikes"], told["actor"]) == ("2", "ann")


def test_SAP_7_a_release_whose_operator_died_before_saying_so_is_completed_by_the_worker(crew: Crew) -> None:
    crew.send("kill_child")
    with crew.worker():
        mid = _caught(crew)
        crew.marks.repair()
        number = plugin_of(crew.app).open_ledger().decisions.decide(mid, "release", "ann")
        record = crew.quarantine.get(mid)
        with Publisher(crew.app) as publisher:
            publish_release(publisher, crew.quarantine.message(mid), record.queue, number)
        crew.await_that(lambda: crew.events("cleared"), "ran and was cleared")
    assert not crew.quarantine.list() and not crew.quarantine.list(candidates=True)
