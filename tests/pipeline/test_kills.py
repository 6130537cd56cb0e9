"""kill -9 of the driver at any moment, with producers running: the lake equals the journal (NEW-7)."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
import redis

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from celery_poison.testing import wait_until
from tests.pipeline.journals import Driver, Producer, commits, in_lake, told

#: Seconds after the driver began, or after a further batch came into the lake.
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
            before = commits(lake)
            driver = Driver(redis_url, lake, "--follow", "--every", "0.2", *options)
            if number % 3:
                wait_until(lambda before=before: commits(lake) > before, timeout=240)
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


@pytest.mark.matrix
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("java")
def test_the_lake_is_the_journal_after_the_python_under_a_task_was_killed(
    redis_url: str, tmp_path: Path
) -> None:
    client = redis.Redis.from_url(redis_url)
    lake = tmp_path / "lake"
    producer = Producer(client)
    driver = Driver(redis_url, lake, "--follow", "--every", "0.05")
    try:
        for _ in range(3):
            wait_until(lambda d=driver: d.pythons() or d.process.poll() is not None, timeout=240)
            for pid in driver.pythons():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if driver.process.poll() is not None:  # on one machine Spark repeats no task
                driver = Driver(redis_url, lake, "--follow", "--every", "0.05")
        driver.close()
        producer.stop()
        driver = Driver(redis_url, lake, "--once")
        assert driver.end() == 0, driver.log()
    finally:
        producer.stop()
        driver.close()
    assert in_lake(lake) == told(client, Producer.COPY)
    assert "GAP" not in driver.log()


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("java")
def test_of_two_drivers_one_is_refused_and_the_lake_is_the_journal(redis_url: str, tmp_path: Path) -> None:
    client = redis.Redis.from_url(redis_url)
    lake = tmp_path / "lake"
    producer = Producer(client)
    drivers = [Driver(redis_url, lake, "--follow", "--every", "0.05", log=name) for name in ("1", "2")]
    try:
        wait_until(lambda: any(driver.process.poll() is not None for driver in drivers), timeout=240)
        (refused,) = (driver for driver in drivers if driver.process.poll() is not None)
        assert refused.process.returncode == 1
        assert "another process wrote to" in refused.log() and "Traceback" not in refused.log()
        producer.stop()
        last = Driver(redis_url, lake, "--once", log="3")
        drivers.append(last)
        assert last.end() in (0, 1)  # beside the one that goes on, it may lose
        wait_until(lambda: len(in_lake(lake)) == producer.count, timeout=120)
    finally:
        producer.stop()
        for driver in drivers:
            driver.close()
    assert in_lake(lake) == told(client, Producer.COPY)
