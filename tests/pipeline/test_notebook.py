"""The notebook in the examples: its cells run, in their order, on the history that they make (NEW-7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "pipeline.ipynb"


@pytest.mark.matrix
def test_NEW_7_every_cell_of_the_notebook_runs_and_finds_what_was_planted(
    spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples.histories.world import BAD_RELEASE

    monkeypatch.delenv("POISON_LAKE", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(spark, "stop", lambda: None)  # it is of all tests
    names: dict[str, Any] = {}
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text())["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    told = capsys.readouterr().out
    assert f"task_release {BAD_RELEASE[0]}" in told and "fingerprints are guilty; the first" in told
    assert "recommended: " in told and "an innocent weighs as much as 10 deaths" in told
