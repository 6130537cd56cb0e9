"""The lake's files are handled alike wherever it lies (NEW-7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from celery_poison.pipeline.files import (
    ArrowFiles,
    Files,
    HadoopFiles,
    LocalFiles,
    absolute,
    renames_atomically,
)


@pytest.fixture(params=["local", "hadoop", "arrow"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    url = f"file://{tmp_path}"
    if request.param == "local":
        return LocalFiles(), str(tmp_path)
    if request.param == "hadoop":
        spark: Any = request.getfixturevalue("spark")
        return HadoopFiles(spark, url), url
    return ArrowFiles(url), url


def test_files_are_written_listed_renamed_and_deleted(files: tuple[Files, str]) -> None:
    kind, root = files
    assert kind.names(f"{root}/none") == []
    assert kind.read(f"{root}/none") is None
    assert kind.create(f"{root}/lock", "a")
    assert not kind.create(f"{root}/lock", "b")
    kind.write(f"{root}/lock", "ü\n")
    assert kind.read(f"{root}/lock") == "ü\n"
    assert kind.rename(f"{root}/lock", f"{root}/other")
    assert not kind.rename(f"{root}/lock", f"{root}/third")
    assert kind.create(f"{root}/lock", "c")
    assert kind.names(root) == ["lock", "other"]
    for name in ("lock", "other", "none"):
        kind.delete(f"{root}/{name}")
    assert kind.names(root) == []


def test_a_directory_moves_with_all_that_it_holds_and_goes_with_it(
    files: tuple[Files, str], tmp_path: Path
) -> None:
    kind, root = files
    (tmp_path / "a" / "date=1").mkdir(parents=True)
    (tmp_path / "a" / "date=1" / "x").write_text("x")
    (tmp_path / "deep").mkdir()
    assert kind.rename(f"{root}/a", f"{root}/deep/b")
    assert kind.names(f"{root}/deep/b") == ["date=1"]
    kind.delete(f"{root}/deep")
    assert kind.names(root) == []


def test_only_object_stores_have_no_atomic_rename() -> None:
    assert [renames_atomically(root) for root in ("/a", "file:///a", "hdfs://h/a", "s3a://b/a")] == [
        True,
        True,
        True,
        False,
    ]


def test_a_root_is_the_same_for_every_process() -> None:
    assert absolute("/a/b/") == absolute("file:///a/b") == "/a/b"
    assert absolute("lake") == str(Path.cwd() / "lake")
    assert absolute("s3a://b/lake/") == "s3a://b/lake"
