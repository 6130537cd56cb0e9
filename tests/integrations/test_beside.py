"""Another package and the plugin in one worker: it still does its work, and who kills is convicted."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import redis

from tests import PATIENCE
from tests.apps.harness import ROOT
from tests.integrations.conftest import Beside

pytestmark = pytest.mark.integrations

Make = Callable[..., Beside]


def beside_package(module: str) -> Any:
    """The module, or the test is skipped and the end of the run says so."""
    return pytest.importorskip(module, reason=f"{module}, which shares a worker here, is not installed")


#: A trace that began at the sender's.
TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_sentry_has_errors_and_traces_and_each_conviction_is_an_event_there(beside: Make) -> None:
    beside_package("sentry_sdk")
    fleet = beside("sentry")
    with fleet.supervise():
        fleet.send("raises")
        fleet.convicts()
        fleet.await_that(lambda: fleet.seen(kind="event", task="fleet.raises"), "the error")
        assert fleet.seen(kind="event", task="fleet.raises")[0]["error"] == ["LookupError"]
        fleet.await_that(lambda: fleet.seen(kind="transaction", task="fleet.healthy"), "the transaction")
        for record in fleet.quarantine.list():
            told = [one for one in fleet.seen(kind="event") if record.id in one["message"]]
            assert any("is in quarantine now" in one["message"] for one in told), fleet.evidence()


def test_opentelemetry_spans_keep_their_trace_through_a_death_and_a_release(beside: Make) -> None:
    beside_package("opentelemetry.instrumentation.celery")
    fleet = beside("opentelemetry")
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    with fleet.supervise():
        fleet.convicts()
        fleet.await_that(lambda: fleet.seen(span="run/fleet.healthy"), "a span")
        assert not fleet.seen(span="run/fleet.kill_child")
        again = fleet.send("kill_child", headers=headers)
        fleet.await_that(lambda: len(fleet.quarantine.list()) == 3, "the third poison is in quarantine")
        (kept,) = [record for record in fleet.quarantine.list() if record.id == again.id]
        fleet.marks.repair()
        fleet.quarantine.release([kept.mid], actor="ann", note="repaired")
        assert again.get(timeout=PATIENCE) == "repaired"
        fleet.await_that(lambda: fleet.seen(span="run/fleet.kill_child", trace=TRACE), "its span")


def test_ddtrace_has_a_span_of_each_task_that_ends_and_of_each_error(beside: Make) -> None:
    beside_package("ddtrace")
    fleet = beside("ddtrace")
    with fleet.supervise():
        raised = fleet.send("raises")
        fleet.convicts()
        fleet.await_that(lambda: fleet.seen(span="celery.run", task="fleet.healthy", error=0), "a span")
        fleet.await_that(lambda: fleet.seen(span="celery.run", id=raised.id, error=1), "the span of an error")


def test_a_singleton_runs_once_and_is_locked_as_long_as_it_is_in_quarantine(beside: Make) -> None:
    beside_package("celery_singleton")
    fleet = beside("singleton")
    once = fleet.app.tasks["beside.once"]
    first = once.delay("works")
    assert once.delay("works").id == first.id
    dies = once.delay("dies")
    with fleet.supervise():
        assert first.get(timeout=PATIENCE) == "works"
        fleet.await_that(lambda: fleet.marks.count("once", "start")["dies"] == 2, "it died twice")
        fleet.await_that(fleet.quarantine.list, "the singleton is in quarantine")
        assert once.delay("dies").id == dies.id
        fleet.marks.repair()
        (kept,) = fleet.quarantine.list()
        fleet.quarantine.release([kept.mid], actor="ann", note="repaired")
        assert dies.get(timeout=PATIENCE) == "dies"
        fleet.await_that(lambda: once.delay("works").id != first.id, "what ended may be sent again")
    assert fleet.marks.count("once", "start")["works"] <= 2


def test_a_singleton_that_is_given_up_keeps_its_lock_until_somebody_deletes_it(beside: Make) -> None:
    beside_package("celery_singleton")
    from celery_singleton import clear_locks

    fleet = beside("singleton")
    once = fleet.app.tasks["beside.once"]
    dies = once.delay("dies")
    with fleet.supervise():
        fleet.await_that(fleet.quarantine.list, "the singleton is in quarantine")
    (kept,) = fleet.quarantine.list()
    (outcome,) = fleet.quarantine.fail([kept.mid], actor="ann", note="hopeless")
    assert outcome.done
    assert once.delay("dies").id == dies.id
    clear_locks(fleet.app)
    assert once.delay("dies").id != dies.id


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Django's database with the tables of django-celery-results; this process and workers find it."""
    django = beside_package("django")
    beside_package("django_celery_results")
    path = tmp_path / "django.sqlite3"
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.integrations.django_settings")
    monkeypatch.setenv("DJANGO_DATABASE", str(path))
    migrate = [sys.executable, "-m", "django", "migrate", "--verbosity=0"]
    subprocess.run(migrate, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    django.setup()
    return path


def _stored(database: Path) -> dict[str, str]:
    with sqlite3.connect(database) as connection:
        return dict(connection.execute("select task_id, status from django_celery_results_taskresult"))


def test_django_celery_results_stores_results_and_what_was_given_up(beside: Make, database: Path) -> None:
    fleet = beside("django", backend_url="django-db")
    with fleet.supervise():
        fleet.convicts()
        healthy = fleet.send("healthy", 8)
        fleet.await_that(lambda: _stored(database).get(healthy.id) == "SUCCESS", "the result is in the table")
        kept = fleet.quarantine.list()
        assert not {record.id for record in kept} & {*_stored(database)}
        outcomes = fleet.quarantine.fail([record.mid for record in kept], actor="ann", note="hopeless")
        assert all(outcome.done for outcome in outcomes), outcomes
        assert {_stored(database)[record.id] for record in kept} == {"FAILURE"}


def test_redbeat_sends_on_while_what_it_sent_goes_to_quarantine(beside: Make, redis_url: str) -> None:
    beside_package("redbeat")
    schedule = {
        "sound": {"task": "fleet.healthy", "schedule": 1.0, "args": (1,)},
        "poison": {"task": "fleet.kill_child", "schedule": 5.0},
    }
    fleet = beside(
        "redbeat",
        beat_schedule=schedule,
        redbeat_redis_url=redis_url,
        beat_max_loop_interval=1,
        redbeat_lock_timeout=300,
    )
    with fleet.worker(args=("-B", "--scheduler", "redbeat.RedBeatScheduler")):
        fleet.await_that(fleet.quarantine.list, "what beat sent is in quarantine")
        assert {record.task for record in fleet.quarantine.list()} == {"fleet.kill_child"}
        with closing(redis.Redis.from_url(redis_url, decode_responses=True)) as client:
            assert {"redbeat:sound", "redbeat:poison"} <= {*client.keys("redbeat:*")}
        before = fleet.marks.count("healthy", "end")[1]
        fleet.await_that(lambda: fleet.marks.count("healthy", "end")[1] > before + 1, "beat goes on")
        fleet.marks.repair()
        fleet.await_that(lambda: not fleet.quarantine.list(candidates=True), "no trial is left to be ended")


@pytest.mark.parametrize("everything", [False, True])
def test_a_batch_is_flushed_beside_guarded_tasks_that_are_convicted(beside: Make, everything: bool) -> None:
    beside_package("celery_batches")
    fleet = beside("batches", poison_guard_all=everything)

    def flushed() -> list[int]:
        return sorted(chain.from_iterable(one["batch"] for one in fleet.seen()))

    with fleet.supervise():
        fleet.convicts()
        for n in range(7):
            fleet.app.tasks["beside.many"].delay(n)
        fleet.await_that(lambda: len(flushed()) >= 7, "all are flushed")
    assert flushed() == [*range(7)]
    assert max(len(one["batch"]) for one in fleet.seen()) > 1


# --- on trial ----------------------------------------------------------------------------------------


def test_NEW_1_sentry_has_the_error_of_a_suspect_from_its_cell(beside: Make) -> None:
    beside_package("sentry_sdk")
    fleet = beside("sentry")
    with fleet.worker() as worker:
        raised = fleet.suspect("fleet.raises")
        with pytest.raises(LookupError):
            raised.get(timeout=PATIENCE)
        fleet.await_that(lambda: fleet.seen(kind="event", task="fleet.raises"), "the error")
        assert fleet.suspect("fleet.healthy", 7).get(timeout=PATIENCE) == 7
        fleet.await_that(lambda: fleet.seen(kind="transaction", task="fleet.healthy"), "the transaction")
        assert "cannot be tried in cells" not in worker.log_text()


def test_NEW_1_opentelemetry_has_the_span_of_a_suspect_from_its_cell(beside: Make) -> None:
    beside_package("opentelemetry.instrumentation.celery")
    fleet = beside("opentelemetry")
    with fleet.worker() as worker:
        assert fleet.suspect("fleet.healthy", 7).get(timeout=PATIENCE) == 7
        fleet.await_that(lambda: fleet.seen(span="run/fleet.healthy"), "its span")
        (span,) = fleet.seen(span="run/fleet.healthy")
        assert span["pid"] not in {worker.main_pid, *worker.child_pids()}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_NEW_1_django_closes_connections_around_each_task_in_a_cell_too(
    beside: Make, database: Path, pool: str
) -> None:
    fleet = beside("django")
    with fleet.worker(pool=pool) as worker:
        results = [fleet.suspect("beside.connects") for _ in range(2)]
        assert [each.get(timeout=PATIENCE) for each in results] == [False, False]
        fleet.await_acquittal()
        assert "cannot be tried in cells" not in worker.log_text()
        assert "Traceback" not in worker.log_text()
