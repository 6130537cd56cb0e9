"""Ordinary failures are kept, where a task asks for it, and everybody is told of them as ever (NEW-10)."""

from __future__ import annotations

import pytest

from celery_poison.model import MessageRecord
from tests import PATIENCE, sampled
from tests.worker.conftest import Crew


def _kept(crew: Crew, id: str, releases: int = 0) -> MessageRecord | None:
    found = (record for record in crew.quarantine.list() if (record.id, record.releases) == (id, releases))
    return next(found, None)


@pytest.mark.parametrize(
    ("pool", "broker_url"),
    sampled([("prefork", "redis"), ("threads", "rabbitmq")], [("solo", "redis"), ("prefork", "rabbitmq")]),
    indirect=["broker_url"],
)
def test_NEW_10_what_failed_is_kept_with_every_attempt_and_succeeds_after_its_release(
    crew: Crew, pool: str
) -> None:
    told = crew.app.tasks["fleet.told"].si().set(immutable=True)
    retried = crew.send("fails", "retried", link_error=told)
    ignored, at_once, once = (crew.send("fails", what) for what in ("ignored", "at-once", "once"))
    with crew.worker(pool=pool):
        crew.await_that(lambda: _kept(crew, retried.id) and _kept(crew, at_once.id), "both kept")
        with pytest.raises(ValueError, match="retried: try 2"):
            retried.get(timeout=PATIENCE)
        with pytest.raises(KeyError, match="left alone"):
            ignored.get(timeout=PATIENCE)
        assert once.get(timeout=PATIENCE) == ["failure", "ValueError"], "a retry can read why"
        crew.await_that(lambda: crew.starts("told"), "its errback was called")

        record, detail = _kept(crew, retried.id), crew.quarantine.detail(retried.id)
        assert record is not None and record.cause == "failure" and record.strikes == 0
        assert record.reason == "raised ValueError, attempt 3"
        assert record.evidence.source.startswith("_fail (") and "apps.py" in record.evidence.source
        failure = detail.failure
        assert failure is not None and failure.message == "retried: try 2"
        assert "ValueError: retried: try 2" in failure.traceback
        assert [attempt.message for attempt in failure.earlier] == ["retried: try 0", "retried: try 1"]
        assert all(": try" not in entry["evidence"] + entry["note"] for entry in crew.events())
        starts = [mark.n for mark in crew.marks.all("fails", "start")]
        assert (starts.count("at-once"), starts.count("ignored"), starts.count("retried")) == (1, 1, 3)

        # It runs alone, in a cell, and fails again there: three tries more, but for those used up.
        crew.quarantine.release([record.mid])
        crew.await_that(lambda: _kept(crew, retried.id, releases=1), "kept again")
        again = crew.quarantine.detail(retried.id).failure
        assert again is not None and [attempt.message for attempt in again.earlier][2:] == ["retried: try 2"]
        crew.marks.repair()
        crew.quarantine.release([record.mid])
        crew.await_that(
            lambda: crew.app.AsyncResult(retried.id).state == "SUCCESS", "its result is overwritten"
        )
        cause, exception, source = crew.app.AsyncResult(retried.id).result
        assert (cause, exception) == ("failure", "ValueError") and source.startswith("_fail (")
        crew.await_that(crew.nothing_runs, "forgotten")
    assert {record.id for record in crew.quarantine.list()} == {at_once.id}


def test_NEW_10_killed_at_any_step_a_worker_loses_no_failure_and_runs_none_that_was_stored(
    crew: Crew,
) -> None:
    crew.module = "tests.worker.dies_keeping"
    with crew.supervise(concurrency=1):
        for number, when in enumerate(("after", "before"), 1):
            sent = crew.send("fails", when)
            crew.await_that(lambda number=number: len(crew.quarantine.list()) == number, "kept")
            crew.await_that(
                lambda number=number: crew.marks.count("keeping", "dies").total() == number, "died"
            )
            crew.await_that(crew.nothing_runs, "nothing left running")
            assert crew.quarantine.list()[0].id == sent.id
    # The last of three attempts is the one that is kept.
    starts = [mark.n for mark in crew.marks.all("fails", "start")]
    assert starts.count("after") == 3, "what was stored does not run again"
    assert starts.count("before") == 4, "what was not stored does"
    assert not crew.events("crashed"), "nobody is to blame"
