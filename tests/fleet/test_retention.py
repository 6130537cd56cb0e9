"""What was kept for too long is in a file before it is deleted, wherever the monitor dies."""

from __future__ import annotations

import json
import resource
from itertools import count
from pathlib import Path

import pytest

from celery_poison.errors import ConfigurationError
from celery_poison.fleet.retention import Retention
from celery_poison.ledger import decisions as transitions
from celery_poison.settings import Settings
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.fleet.forked import DIED, Forked

WEEK = 7 * 86_400


def _settings(directory: Path, keep: float = WEEK) -> Settings:
    return Settings.from_conf({"poison_quarantine_keep": keep, "poison_quarantine_export": str(directory)})


def _age(keeper: Keeper, mid: str) -> None:
    keys = keeper.ledger.keys
    for index in (keys.quarantine, keys.failed):
        keeper.ledger.client.zincrby(index, -2 * WEEK * 1000, mid)
        keeper.ledger.client.zremrangebyscore(index, "-inf", 0)


def _written(directory: Path) -> list[str]:
    return [line for file in sorted(directory.iterdir()) for line in file.read_text().splitlines()]


def test_NEW_6_retention_killed_at_any_command_deletes_nothing_that_is_not_in_the_file(
    fleet: Fleet, keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the next round would leave a dead monitor's decision to it for half a minute.
    monkeypatch.setattr(transitions, "DECISION_PATIENCE_MS", 0)
    young = keeper.send_and_keep("fleet.healthy", "young")
    for number in count(1):
        directory = tmp_path / str(number)
        directory.mkdir()
        kept, given_up = (keeper.send_and_keep("fleet.healthy", n) for n in range(2))
        fleet.quarantine.discard([given_up])
        for mid in (kept, given_up):
            _age(keeper, mid)
        monitor = Forked(lambda: Retention(keeper.ledger, _settings(directory)).round(), number)  # noqa: B023
        monitor.wait()
        left = {r.mid for state in ("NDLV", "FAIL") for r in fleet.quarantine.list(state=state)}
        assert {kept, given_up, young} <= left | {json.loads(line)["mid"] for line in _written(directory)}
        Retention(keeper.ledger, _settings(directory)).round()
        # Killed between its two steps it was given up a moment ago, and is kept as long again.
        assert not fleet.quarantine.queries.message(given_up)
        assert [record.mid for record in fleet.quarantine.list()] == [young]
        fleet.quarantine.purge([kept])
        if monitor.status != DIED:
            break
    assert number > 6, "it was killed at every command"
    assert all(outcome.done for outcome in fleet.quarantine.import_(_written(directory)))
    assert {record.mid for record in fleet.quarantine.list()} == {young, kept, given_up}


def test_half_a_line_of_a_dead_monitor_spoils_no_other_and_a_missing_directory_deletes_nothing(
    fleet: Fleet, keeper: Keeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    _age(keeper, mid)
    assert Retention(keeper.ledger, _settings(tmp_path / "missing")).round() == 0
    assert "old messages stay in quarantine: poison_quarantine_export: [Errno 2] No such file" in caplog.text
    assert fleet.quarantine.get(mid).state == "NDLV"
    directory = tmp_path / "files"
    directory.mkdir()
    retention = Retention(keeper.ledger, _settings(directory))
    retention._write(["half"])
    (file,) = directory.iterdir()
    file.write_text('{"v": 1, "mi')
    assert retention.round() == 1
    torn, whole = _written(directory)
    assert (torn, json.loads(whole)["mid"]) == ('{"v": 1, "mi', mid)
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_disk_that_takes_only_a_part_of_it_deletes_nothing(
    fleet: Fleet, keeper: Keeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", "x" * 1000)
    _age(keeper, mid)
    directory = tmp_path / "files"
    directory.mkdir()
    retention = Retention(keeper.ledger, _settings(directory))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # what is beyond is not written
    try:
        assert retention.round() == 0 and "File too large" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [record.mid for record in fleet.quarantine.list()] == [mid]
    assert retention.round() == 1
    assert json.loads(_written(directory)[-1])["mid"] == mid


def test_what_is_deleted_must_go_somewhere_first() -> None:
    with pytest.raises(ConfigurationError, match="set poison_quarantine_export"):
        Settings.from_conf({"poison_quarantine_keep": WEEK})
