"""kill -9 of the driver at any moment, with producers running: the lake equals the journal (NEW-7)."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import redis

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from celery_poison.testing import wait_until
from tests.pipeline.journals import Driver, Producer, in_lake, told

#: Seconds after the lock was taken, or after a further batch came into the lake.
EARLY, LATE = 4.0, 1.0


@pytest.mark.parametrize(
    ("kills", "options"),
    [
        pytest.param(2, (), id="2-kills"),
        pytest.param(20, (), id="20-kills", marks=pytest.mark.matrix),
        pytest.param(20, ("--trim-after", "0"), id="20-kills-trimming", marks=pytest.mark.matrix),
    ],
)
@pytest.mark.matrix
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("java")
def test_the_lake_is_the_journal_after_kills_at_random_moments(
    kills: int, options: tuple[str, ...], redis_url: str, tmp_path: Path
) -> None:
    client = redis.Redis.from_url(redis_url)
    lake = tmp_path / "lake"
    dice = random.Random(kills)
    producer = Producer(client)
    driver = None
    try:
        for number in range(kills):
            held = (lake / "_lock").read_text() if (lake / "_lock").exists() else ""
            driver = Driver(redis_url, lake, "--follow", "--every", "0.2", *options)
            wait_until(lambda held=held: _locked_anew(lake, held), timeout=240)
            if number % 3:
                before = _batches(lake)
                wait_until(lambda before=before: _batches(lake) - before, timeout=240)
            time.sleep(dice.uniform(0.0, LATE if number % 3 else EARLY))  # the moment is the experiment
            driver.kill(alone=number % 2 == 1)
        producer.stop()
        driver = Driver(redis_url, lake, "--once", *options)
        assert driver.end() == 0, driver.log()
    finally:
        producer.stop()
        if driver:
            driver.close()
    assert producer.count > 100
    assert in_lake(lake) == told(client, Producer.COPY)
    assert "GAP" not in driver.log()


def _locked_anew(lake: Path, held: str) -> bool:
    lock = lake / "_lock"
    return lock.exists() and lock.read_text() not in ("", held)


def _batches(lake: Path) -> set[str]:
    return {path.parent.name for path in lake.glob("journal/*/_SUCCESS")}
