"""`celery poison journal export`: the whole journal, and what is missing of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from celery_poison.plugin import plugin_of
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.services import need


def _write(fleet: Fleet, count: int) -> list[str]:
    """Fill the journal with entries of which only the id matters; return their ids."""
    ledger = plugin_of(fleet.app).open_ledger()
    journal, ids = ledger.keys.journal, []
    with ledger.client.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.xadd(journal, {"v": "2", "event": "finished", "id": f"id-{number}", "note": 'a "b" ☠\n'})
        ids = [key.decode() for key in pipe.execute()]
    return ids


def _trim(fleet: Fleet, keep: int) -> None:
    ledger = plugin_of(fleet.app).open_ledger()
    ledger.client.xtrim(ledger.keys.journal, maxlen=keep, approximate=False)


def test_every_entry_is_written_once_and_in_order_however_many(
    fleet: Fleet, console: Console, tmp_path: Path
) -> None:
    ids = _write(fleet, 2500)
    target = tmp_path / "journal.jsonl"
    told = console.run("journal", "export", "--output", str(target))
    entries = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert [entry["at"] for entry in entries] == ids
    assert entries[7]["note"] == 'a "b" ☠\n' and entries[7]["task"] == ""
    assert told.stderr.splitlines() == [f"2500 entries written; go on with --after {ids[-1]}"]
    assert told.stdout == ""


def test_the_next_export_goes_on_where_the_last_one_ended(fleet: Fleet, console: Console) -> None:
    ids = _write(fleet, 5)
    later = console.run("journal", "export", "--after", ids[2])
    assert [json.loads(line)["at"] for line in later.stdout.splitlines()] == ids[3:]
    last = console.run("journal", "export", "--after", ids[-1])
    assert last.stdout == "" and last.stderr == f"0 entries written; go on with --after {ids[-1]}\n"


def test_what_was_trimmed_before_is_counted_and_told(fleet: Fleet, console: Console) -> None:
    ids = _write(fleet, 10)
    ledger = plugin_of(fleet.app).open_ledger()
    counted: Any = ledger.client.xinfo_stream(ledger.keys.journal)
    need("entries-added" in counted, "a Redis that counts the entries ever added")
    _trim(fleet, 4)
    first, warning = console.run("journal", "export").stderr.splitlines()
    assert first.startswith("4 entries written")
    assert warning.startswith("warning: 6 older entries had been trimmed already: export more often")
    told = console.run("journal", "export", "--after", ids[2]).stderr
    assert f"entries after {ids[2]} may have been trimmed already" in told
    assert "warning" not in console.run("journal", "export", "--after", ids[7]).stderr


def test_an_empty_journal_is_no_error(console: Console) -> None:
    told = console.run("journal", "export")
    assert (told.stdout, told.stderr) == ("", "0 entries written\n")


def test_an_id_that_is_none_is_wrong_usage(console: Console) -> None:
    assert (
        "use the id of an entry" in console.run("journal", "export", "--after", "yesterday", status=2).stderr
    )
