"""Export and import at a terminal."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Console
from tests.desk.keeping import Keeper


def test_SAP_7_what_export_writes_import_takes_once_and_says_what_it_did(
    console: Console, keeper: Keeper, tmp_path: Path
) -> None:
    mids = [keeper.send_and_keep("fleet.healthy", n) for n in range(2)]
    file = tmp_path / "poison.jsonl"
    assert "2 messages written" in console.run("export", "--all", "--output", str(file)).stderr
    assert "2 known already" in console.run("import", str(file)).stderr
    console.run("discard", "--all", "--yes")
    console.run("purge", "--all", "--yes", "--no-copy")
    file.write_text(file.read_text() + "rubbish\n")
    told = console.run("import", str(file), status=1).stderr
    assert "2 messages imported, 1 refused" in told and "line 3: it is no JSON" in told
    assert {record["mid"] for record in console.json("list")} == {*mids}
    assert "nothing matched" in console.run("export", "--filter", "task=nothing", status=1).stderr
