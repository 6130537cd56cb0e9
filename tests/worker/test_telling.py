"""The caller hears at the conviction, and the message stays to be released or failed later (NEW-17)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import chord
from celery.result import AsyncResult

from celery_poison.errors import GivenUp, Quarantined
from celery_poison.model import MessageRecord
from celery_poison.plugin import plugin_of
from celery_poison.testing import Supervisor
from tests import PATIENCE, sampled
from tests.worker.conftest import Crew

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
REDIS_FIRST = pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)


def _kept(crew: Crew, *, told: bool = True) -> MessageRecord:
    crew.await_that(lambda: [r for r in crew.quarantine.list() if r.told == told], "in quarantine, and told")
    (kept,) = crew.quarantine.list()
    return kept


def _again(result: AsyncResult) -> AsyncResult:
    """Return the result as whoever asks now gets it: an object keeps the failure that it has heard."""
    return AsyncResult(result.id, app=result.app)


def _hooks(crew: Crew) -> list[Any]:
    return [mark.n for mark in crew.marks.all("vows", "on_failure")]


@BOTH
def test_NEW_17_a_caller_hears_at_the_conviction_and_a_release_overwrites_it(crew: Crew) -> None:
    result = crew.send("vows")
    with crew.worker():
        with pytest.raises(Quarantined) as heard:
            result.get(timeout=PATIENCE)
        kept = _kept(crew)
        assert (heard.value.mid, heard.value.cause) == (kept.mid, "signal:9")
        assert isinstance(heard.value, GivenUp)
        assert "SIGKILL" in str(heard.value)
        assert _hooks(crew) == ["Quarantined"]
        crew.marks.repair()
        crew.quarantine.release([kept.mid])
        crew.await_that(lambda: _again(result).state == "SUCCESS", "its result replaces the failure")
        crew.await_that(crew.nothing_runs, "forgotten")
    assert _again(result).result == "repaired"
    assert _hooks(crew) == ["Quarantined"]
    assert not plugin_of(crew.app).open_ledger().client.exists("{poison}:telling")


@REDIS_FIRST
def test_NEW_17_fail_says_nothing_twice(crew: Crew) -> None:
    result = crew.send("vows", link_error=crew.app.tasks["fleet.told"].s())
    with crew.worker():
        kept = _kept(crew)
        (outcome,) = crew.quarantine.fail([kept.mid], note="too late")
        assert outcome.done
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        crew.await_that(crew.nothing_runs, "everything else is over")
    assert isinstance(result.result, Quarantined)
    assert _hooks(crew) == ["Quarantined"]
    assert crew.starts("told") == 1
    assert crew.quarantine.get(kept.mid).state == "FAIL"


@pytest.mark.matrix
def test_NEW_17_a_caller_hears_where_the_code_was(crew: Crew) -> None:
    result = crew.send("vows", "crashes")
    with crew.worker():
        with pytest.raises(Quarantined) as heard:
            result.get(timeout=PATIENCE)
        _kept(crew)
    assert heard.value.cause == "signal:11"
    assert heard.value.place.startswith("vows (") and "apps.py:" in heard.value.place


def test_NEW_17_a_chord_hears_of_it_once(crew: Crew) -> None:
    tasks = crew.app.tasks
    body = tasks["fleet.adds"].s().on_error(tasks["fleet.told"].s())
    crew.send("healthy", 0)
    with crew.worker():
        result = chord([tasks["fleet.vows"].s(), tasks["fleet.healthy"].si(1)])(body)
        kept = _kept(crew)
        crew.await_that(lambda: crew.starts("told") == 1, "its errback")
        crew.await_that(result.ready, "its chord has failed")
        crew.marks.repair()
        crew.quarantine.release([kept.mid])
        crew.await_that(lambda: not crew.quarantine.list() and crew.nothing_runs(), "released, and over")
    assert result.state == "FAILURE"
    assert crew.starts("told") == 1
    assert crew.starts("adds") == 0


def test_NEW_17_without_it_a_caller_waits_for_a_person(crew: Crew) -> None:
    result = crew.send("kill_child")
    with crew.worker():
        crew.await_that(crew.quarantine.list, "in quarantine")
        (mid,) = [record.mid for record in crew.quarantine.list()]
        # Whoever publishes may send these tasks of ours, too: they act only where that was asked for.
        crew.app.send_task("celery_poison.told", (mid,))
        crew.app.send_task("celery_poison.failed", (mid, "forged"))
        crew.await_that(lambda: "waits for a person's decision" in crew.log_text(), "nobody is told")
        crew.await_that(lambda: "its on_failure is not called" in crew.log_text(), "nothing is called")
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        crew.await_that(crew.nothing_runs, "everything is over")
    assert not result.ready()
    assert not _kept(crew, told=False).told


def test_NEW_17_a_caller_hears_once_its_results_are_back_whatever_errors_their_backend_has(
    new_crew: Callable[..., Crew], broker_url: str, tmp_path: Path
) -> None:
    """SQLAlchemy's, Django's and MongoDB's backends raise errors of their own while they are away."""
    here, away = tmp_path / "here", tmp_path / "away"
    here.mkdir()
    crew = new_crew(broker_url, backend_url=f"db+sqlite:///{here}/results.db")
    with crew.worker() as worker:
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        here.rename(away)
        result = crew.send("vows")
        crew.await_that(lambda: "Retry in 5" in worker.log_text(), "the caller cannot be told yet")
        away.rename(here)
        with pytest.raises(Quarantined):
            result.get(timeout=PATIENCE)
        _kept(crew)


@REDIS_FIRST
@pytest.mark.parametrize("dies", sampled(["stored"], ["owed", "sent", "failed", "told"]))
def test_NEW_17_whoever_dies_between_two_steps_its_caller_hears_all_the_same(
    new_crew: Callable[..., Crew], broker_url: str, dies: str
) -> None:
    """The worker that quarantines dies after a step of its own, or the one that tells after one of its."""
    crew = new_crew(broker_url)
    crew.module = "tests.worker.dies_telling"  # type: ignore[misc]
    result = crew.send("vows")
    with Supervisor(lambda name: crew.worker(name, env={"TELLING_DIES": dies})):
        with pytest.raises(Quarantined):
            result.get(timeout=PATIENCE)
        kept = _kept(crew)
    assert crew.marks.all("telling", dies), "it died there"
    assert (kept.id, kept.state) == (result.id, "NDLV")
    assert _hooks(crew) == ["Quarantined"] * (2 if dies == "told" else 1)
