"""What quarantine cannot take lies on disk, and comes there later, once."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.keep.spool import Spool, Spooled, open_spool, spooled_here
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Start
from celery_poison.rules.destinations import Route
from tests.apps.factory import build_app
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.fleet.forked import DIED, Forked

BODY = b"\x00\xff\xfe body"


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool"))


def spooled(mid: str, **more: Any) -> Spooled:
    start = Start.of("b00t.1", "w1@test/b00t", f"id-{mid}", "shop.convert", queue="celery")
    fields = {"body": BODY, "content_type": "application/data", "content_encoding": "binary"}
    fields |= {"headers": '{"a": "\\ud800"}', "properties": "{}", "fingerprint": "f00"}
    words = {"cause": "payload", "reason": "its body is Größe", "fields": fields, "block_after": None}
    return Spooled(mid, start, {**words, "route": Route("dead.letters"), "known": {}, **more})


def test_WAS_8_a_message_comes_back_from_disk_as_it_went_there(spool: Spool, keeper: Keeper) -> None:
    message = spooled("m1")
    assert Spooled.decode(message.encode()) == message
    spool.put(message)
    (file,) = spool.path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600 and spool.path.stat().st_mode & 0o777 == 0o700
    assert [*spool.bring_to(keeper.ledger)] == ["m1"]
    assert [*spool.path.iterdir()] == [] and [*spool.bring_to(keeper.ledger)] == []
    raw = keeper.ledger.client.hgetall(keeper.ledger.keys.message("m1"))
    assert raw[b"body"] == BODY and raw[b"reason"].decode() == "its body is Größe"
    assert keeper.ledger.client.zcard(keeper.ledger.keys.outgoing) == 1, "its destination is not forgotten"


def test_WAS_8_what_somebody_gave_up_and_what_is_there_already_comes_once(
    spool: Spool, keeper: Keeper, fleet: Fleet
) -> None:
    for mid in ("kept", "given-up"):
        spool.put(spooled(mid))
    assert len([*spool.bring_to(keeper.ledger)]) == 2
    assert fleet.quarantine.discard(["given-up"])[0].done
    for mid in ("kept", "given-up"):
        spool.put(spooled(mid))
    assert [*spool.bring_to(keeper.ledger)] == [] and spool.count() == 0


def test_WAS_8_while_a_copy_runs_the_message_stays_on_disk(spool: Spool, keeper: Keeper) -> None:
    other = Start.of("b00t.2", "w1@test/b00t", "id-m1", "shop.convert")
    assert keeper.ledger.messages.claim("m1", b"", other)
    spool.put(spooled("m1"))
    assert [*spool.bring_to(keeper.ledger)] == [] and spool.count() == 1
    assert keeper.ledger.messages.claim("m1", other.encode(), None)
    assert [*spool.bring_to(keeper.ledger)] == ["m1"]


def test_WAS_8_a_file_that_nobody_can_read_holds_up_no_other(
    spool: Spool, keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    (spool.path / f"{0:032}.json").write_text('["m0", []')
    (spool.path / "1.part").write_bytes(b"half of a mess")  # its worker was killed
    spool.put(spooled("m1"))
    assert [*spool.bring_to(keeper.ledger)] == ["m1"]
    assert sorted(path.name for path in spool.path.iterdir()) == [f"{0:032}.broken", "1.part"]
    assert "cannot be read" in caplog.text
    assert spooled_here(str(spool.path)).startswith("1 message that quarantine could not take")


def test_WAS_8_files_of_somebody_else_in_its_directory_stay_as_they_are(spool: Spool, keeper: Keeper) -> None:
    own = {"settings.json": "{}", "old.broken": "", "f00d.json": "[]"}
    for name, text in own.items():
        (spool.path / name).write_text(text)
    (spool.path / f"{7:032}.json").symlink_to(spool.path / "settings.json")
    assert [*spool.bring_to(keeper.ledger)] == [] and spool.count() == 1
    assert {name: (spool.path / name).read_text() for name in own} == own


def test_WAS_8_a_directory_that_others_can_read_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(0o755)
    with pytest.raises(ConfigurationError, match="not a private directory"):
        open_spool(str(open_to_all))
    with pytest.raises(ConfigurationError, match="poison_spool_directory"):
        open_spool(str(tmp_path / "not" / "there"))
    assert open_spool(None) is None and spooled_here(None) == ""


def test_WAS_8_a_disk_that_is_full_leaves_nothing_half_done(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        spool.put(spooled("m1"))
    assert [*spool.path.iterdir()] == []


def test_WAS_8_killed_at_any_command_it_is_brought_once_more_and_is_there_once(
    spool: Spool, fleet: Fleet, keeper: Keeper
) -> None:
    for number in count(1):
        mid = f"m{number}"
        spool.put(spooled(mid))

        def bring() -> None:
            ledger: Ledger = Keeper(build_app(fleet.environ())).ledger
            assert [*spool.bring_to(ledger)] in ([mid], [])  # noqa: B023 - done before the next

        worker = Forked(bring, number)
        worker.wait()
        there = [record.mid for record in fleet.quarantine.list()].count(mid)
        assert there or spool.count() == 1, f"lost at {number}"
        assert [*spool.bring_to(keeper.ledger)] == ([] if there else [mid])
        assert [record.mid for record in fleet.quarantine.list()].count(mid) == 1 and not spool.count()
        if worker.status != DIED:
            break
    assert number > 1, "it was killed at every command"


def test_WAS_8_what_Redis_refuses_stays_on_disk(spool: Spool, new_server: Any) -> None:
    server = new_server()
    ledger = Ledger(open_redis(server.url()), Keys())
    spool.put(spooled("m1"))
    server.client().config_set("min-replicas-to-write", "1")
    with pytest.raises(LedgerUnavailable):
        [*spool.bring_to(ledger)]
    assert spool.count() == 1
    server.client().config_set("min-replicas-to-write", "0")
    assert [*spool.bring_to(ledger)] == ["m1"]
