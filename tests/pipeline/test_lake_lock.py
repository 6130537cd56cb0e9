"""One ingest at a time, and a dead one stops nobody (NEW-7). No Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from celery_poison.pipeline.files import LocalFiles
from celery_poison.pipeline.ingest import lock
from celery_poison.pipeline.ingest.lock import LakeLocked, Lock, LockLost


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "_lock")


def test_a_lake_is_locked_against_a_second_ingest_and_free_after_the_first(path: str) -> None:
    with Lock(LocalFiles(), path), pytest.raises(LakeLocked, match="process"), Lock(LocalFiles(), path):
        pass
    with Lock(LocalFiles(), path):
        pass
    assert not Path(path).exists()


def test_the_lock_of_a_killed_process_is_taken_over_at_once(path: str) -> None:
    code = (
        "import os, sys; from celery_poison.pipeline.ingest.lock import Lock;"
        "from celery_poison.pipeline.files import LocalFiles;"
        f"Lock(LocalFiles(), {path!r}).__enter__(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert Path(path).exists()
    with Lock(LocalFiles(), path):
        pass


def test_a_holder_on_another_machine_is_waited_for_and_then_taken_for_dead(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.2)
    Path(path).write_text(json.dumps({"owner": "x", "beat": 1, "host": "elsewhere", "pid": 1}))
    with Lock(LocalFiles(), path) as held:
        lock.check(LocalFiles(), path, held.owner)


def test_whoever_lost_the_lock_may_not_commit_and_does_not_take_it_away(path: str) -> None:
    with Lock(LocalFiles(), path) as held:
        Path(path).write_text(json.dumps({"owner": "another"}))
        with pytest.raises(LockLost):
            lock.check(LocalFiles(), path, held.owner)
    assert Path(path).exists()


@pytest.mark.parametrize("text", ["", "nonsense", "[1]"])
def test_a_lock_that_says_nothing_is_nobodys(path: str, text: str) -> None:
    Path(path).write_text(text)
    with Lock(LocalFiles(), path):
        pass
