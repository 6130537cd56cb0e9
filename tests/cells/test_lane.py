"""The out-of-memory lane: what was convicted for want of memory runs once more, where there is more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import PATIENCE, sampled
from tests.cells.conftest import Court


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_NEW_11_what_ran_out_of_memory_runs_once_more_in_its_lane_and_is_quarantined_if_it_does_so_again(
    new_court: Any, broker_url: str
) -> None:
    small, large = {"poison_trial_memory_limit": 200 << 20}, {"poison_trial_memory_limit": 600 << 20}
    court: Court = new_court(broker_url, poison_exception_destination={"oom": "bigmem"}, **small)
    roomy = {"POISON_SETTINGS": json.dumps(court.settings | large)}
    fits, never = court.suspect("trial.needs", 300), court.suspect("trial.needs", 1000)
    dies = court.suspect("trial.dies", "memory-error")  # for want of memory, too, and not for "oom"
    with (
        court.worker(name="small"),
        court.worker(name="large", queues=("bigmem",), concurrency=1, env=roomy) as lane,
    ):
        assert fits.get(timeout=PATIENCE) == 300
        court.await_that(lambda: {r.id for r in court.quarantine.list()} == {never.id, dies.id}, "kept")
        court.await_acquittal()
    kept = {record.id: record for record in court.quarantine.list()}
    assert (kept[never.id].cause, kept[never.id].queue, kept[never.id].destination) == ("oom", "bigmem", "")
    assert (kept[dies.id].cause, kept[dies.id].queue) == ("memory_error", "celery")
    starts = [mark.n for mark in court.marks.all("needs", "start")]
    assert sorted(starts) == [300, 300, 1000, 1000], "each once here and once in its lane"
    lane_worker = lane.hostname
    story = [(e["event"], e["worker"].startswith(lane_worker)) for e in court.quarantine.history(fits.id)]
    events = [event for event, _ in story]
    # "sent" is missing where the lane's worker was faster than the note of the monitor.
    assert events.index("released") > events.index("quarantined")
    assert ("finished", True) in story
