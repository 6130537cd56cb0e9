"""Anomalies: what was planted into a history is what stands out (NEW-7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.matrix
def test_planted_waves_drifts_and_slow_recoveries_stand_out(
    spark: Any, history: Path, attempts_of_history: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_poison.pipeline.anomalies import anomalies
    from celery_poison.pipeline.tables import incidents
    from celery_poison.pipeline.tables.usual import usual
    from examples.histories.world import BAD_PAYLOAD, BAD_RELEASE, World

    # A history that is large enough to be sampled would take too long.
    monkeypatch.setitem(usual.__globals__, "SAMPLE", 200)
    made = incidents(spark.read.parquet(str(history)), attempts_of_history)
    found = {(row.kind, row.key): row for row in anomalies(attempts_of_history, made).collect()}
    task, number = BAD_RELEASE
    assert ("release", f"{task} @ {World().releases[number]}") in found
    assert found["payload", BAD_PAYLOAD[0]].times > 5
    # Recoveries take six times as long at the end as at the start; half of that shows in thirds.
    assert {key for kind, key in found if kind == "recovery"}
    releases = [key for kind, key in found if kind == "release" and key.startswith(task)]
    assert len(releases) == 1
