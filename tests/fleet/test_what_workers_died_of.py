"""Whole workers that really die: what is known of it, by their last heartbeat and by who notices (NEW-2)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_poison.desk import sentences
from celery_poison.desk.evidence import sentence_of
from celery_poison.ledger.fleet_model import Incident
from celery_poison.plugin import plugin_of
from tests.apps.confined import Confined, new_memory_group
from tests.apps.harness import ROOT
from tests.fleet.crew import Watched
from tests.fleet.standalone import MonitorProcess

LIMIT = 300 << 20


@pytest.fixture
def group() -> Iterator[Path]:
    with new_memory_group(LIMIT) as made:
        yield made


@pytest.fixture
def monitor(crew: Watched, entry_points: Path) -> Iterator[MonitorProcess]:
    with MonitorProcess(crew, entry_points) as made:
        made.await_active()
        yield made


def _confined(crew: Watched, group: Path) -> Confined:
    env, log = crew.environ(), crew.directory / "w1.log"
    made = Confined("tests.fleet.app", name="w1", pool="solo", env=env, cwd=ROOT, log_path=log)
    made.group = group
    return made


def _vitals(crew: Watched) -> dict[str, Any]:
    """What the one worker told with its last heartbeat."""
    ledger = plugin_of(crew.app).open_ledger()
    (worker,) = crew.quarantine.queries.leases()
    told: Any = ledger.client.hget(ledger.keys.worker(worker), "vitals")
    return dict(json.loads(told))


def _incident(crew: Watched) -> Incident:
    (lost,) = crew.await_events("worker_lost")
    crew.await_events("failover_finished")
    (incident,) = crew.quarantine.queries.incidents()
    assert json.loads(lost["evidence"]) == incident.evidence.as_dict() == incident.as_dict()["evidence"]
    assert sentence_of(incident.evidence) in sentences.sentence(lost)
    return incident


@pytest.mark.usefixtures("monitor")
def test_NEW_2_a_worker_killed_with_its_memory_used_up_leaves_that_as_evidence_and_not_as_a_verdict(
    crew: Watched, group: Path
) -> None:
    result = crew.send("swells", 0)
    with _confined(crew, group) as worker:
        crew.await_that(lambda: crew.marks.all("swells"), "it has eaten")
        crew.await_that(lambda: _vitals(crew)["used_kb"] >= 0.9 * (LIMIT >> 10), "it has said so")
        worker.kill_group()
        incident = _incident(crew)
    seen = incident.evidence
    assert (seen.noticed, seen.asked_ms) == ("gone", None)
    assert (seen.limit_kb, seen.limit_of, seen.near_limit) == (LIMIT >> 10, "group", True)

    (record,) = crew.quarantine.list(candidates=True)
    assert (record.id, record.cause, record.strikes) == (result.id, "worker_lost", 1)
    told = sentences.why(record)
    if seen.oom_likely:  # it was killed soon after it had grown
        assert "near the limit. oom, likely: fleet.swells grew" in told
    else:
        assert "near the limit. The reason is not known. It may be a lack of memory." in told
    (crashed,) = crew.events("crashed")
    assert json.loads(crashed["evidence"])["near_limit"]


@pytest.mark.usefixtures("monitor")
def test_NEW_2_a_worker_killed_after_SIGTERM_is_known_to_have_been_asked_and_when(crew: Watched) -> None:
    results = crew.hold(2)
    with crew.worker() as worker:
        held = crew.await_held(worker, 2)
        worker.terminate()
        crew.await_that(lambda: "asked" in _vitals(crew), "it has said so")
        worker.kill_group()
        incident = _incident(crew)
    assert incident.cause == "eviction"
    assert incident.evidence.asked == "SIGTERM"
    assert incident.evidence.asked_ms is not None
    assert incident.evidence.asked_ms >= (incident.evidence.heard_ms or 0)
    assert "had been asked to leave by SIGTERM" in sentence_of(incident.evidence)
    interrupted = crew.events("interrupted")
    assert {entry["id"] for entry in interrupted} == held == {result.id for result in results}
    assert all(json.loads(entry["evidence"])["asked"] == "SIGTERM" for entry in interrupted)
    assert not crew.events("crashed")
