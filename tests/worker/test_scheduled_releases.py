"""Releases that a real worker's monitor makes by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests import sampled
from tests.cli.conftest import Console
from tests.worker.conftest import Crew


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_NEW_6_a_scheduled_release_outlives_every_process_and_is_repeated_until_the_cause_has_passed(
    new_crew: Any, broker_url: str
) -> None:
    crew: Crew = new_crew(broker_url)
    result = crew.send("asks", "quarantine")
    with crew.worker(concurrency=1) as worker:
        crew.await_that(lambda: [r.id for r in crew.quarantine.list()] == [result.id], "in quarantine")
        (record,) = crew.quarantine.list()
        how = ("--after", "1s", "--times", "9", "--actor", "ann")
        Console(crew.app).run("release", record.mid, *how)
        worker.kill_group()
        worker.wait()
    with crew.worker(name="w2", concurrency=1):
        crew.await_that(lambda: crew.starts("asks") >= 3, "released twice by another monitor")
        crew.marks.repair()
        crew.await_that(lambda: result.state == "SUCCESS", "released once more")
        crew.await_that(lambda: not crew.quarantine.list(), "and gone")
    assert {entry["actor"] for entry in crew.events("released")} == {"ann"}
