"""What is missing is explained before anything is begun (NEW-7). No Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from celery_poison.cli import pipeline as commands
from celery_poison.cli.command import CommandRefused
from celery_poison.cli.pipeline_checks import said_plainly
from celery_poison.cli.standalone import main
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.pipeline import session
from celery_poison.pipeline.session import together
from tests import PATIENCE


def _java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_without_pyspark_the_command_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = commands.find_spec
    monkeypatch.setattr(commands, "find_spec", lambda name: None if name == "pyspark" else found(name))
    ran = CliRunner().invoke(main, ["pipeline", "ingest", "--lake", str(tmp_path), "--redis", "redis://x"])
    assert ran.exit_code == 1
    assert "pip install 'celery-poison[spark]'" in ran.output


def test_the_command_line_does_not_import_spark_until_it_is_needed() -> None:
    code = "import sys, celery_poison.cli.pipeline; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("version", "told"), [("", "no Java"), ("11.0.2", "Java 11"), ("1.8.0_292", "Java 8")]
)
def test_without_a_new_java_the_command_names_the_cure(
    version: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version:
        _java(tmp_path / "old", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(session.SparkAbsent, match=rf"17 or newer.*{told}.*openjdk-17-jre-headless"):
        session.find_java()


def test_a_new_java_on_the_path_is_taken_when_java_home_has_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _java(tmp_path / "old", "11.0.2")
    _java(tmp_path / "new", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'new' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert session.find_java() == tmp_path / "new"


def test_a_master_of_another_kind_is_refused() -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(ConfigurationError, match="local"):
        session.open_session("yarnn://x")


@pytest.mark.parametrize("words", [[], ["--conf", "x"]])
def test_a_command_that_lacks_something_is_wrong_usage(words: list[str]) -> None:
    ran = CliRunner().invoke(main, ["pipeline", "ingest", *words])
    assert ran.exit_code == 2


def test_what_runs_together_ends_together_and_the_first_failure_is_told() -> None:
    met, ended = threading.Barrier(2, timeout=PATIENCE), []

    def meets(name: str) -> str:
        met.wait()
        ended.append(name)
        return name

    assert together(lambda: meets("a"), lambda: meets("b")) == ["a", "b"]

    def fails() -> None:
        raise ConfigurationError("no such table")

    with pytest.raises(ConfigurationError, match="no such table"):
        together(fails, lambda: ended.append("c"))
    assert sorted(ended) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("typed", "status", "sentence"),
    [
        (["report", "--lake", "FILE"], 2, "--lake FILE: this is a file; a directory is wanted"),
        (["ingest", "--lake", "FILE/below", "--redis", "redis://x"], 1, "the directory cannot be made"),
        (["blame", "--lake", "FILE.absent"], 1, "there is no such directory; `pipeline ingest` makes one"),
        (["ingest", "--lake", "DIR"], 2, "which Redis? --redis redis://"),
        (["blame", "--lake", "DIR", "--since", "yesterday"], 2, "--since yesterday: a day is wanted"),
        (["blame", "--lake", "DIR", "--until", "7d"], 2, "--until 7d: a day is wanted"),
        (["blame", "--lake", "DIR", "--cause", "nonsense"], 2, "--cause nonsense: no such cause"),
        (["report", "--lake", "DIR", "--out", "FILE.absent/page.html"], 2, "there is no directory"),
        (["tables", "--lake", "DIR", "--conf", "spark.x"], 2, "--conf spark.x: NAME=VALUE is wanted"),
        (["tables", "--lake", "DIR", "--since", "2026-03-02"], 2, "it goes with --rebuild only"),
        (["tables", "--lake", "DIR", "--rebuild", "--since", "7d"], 2, "--since 7d: a day is wanted"),
        (["forecast", "--lake", "DIR"], 2, "which limit? One of --peak, --runtime, --wait, --latency"),
        (["forecast", "--lake", "DIR", "--wait", "1", "--peak", "1"], 2, "which limit?"),
        (["maintain", "--lake", "FILE"], 2, "this is a file; a directory is wanted"),
    ],
)
def test_a_mistake_is_one_sentence_before_spark_starts(
    typed: list[str], status: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr(session, "open_session", lambda *_: pytest.fail("Spark was started"))
    # Its packages may be missing: to have them installed, and then to be refused, would be a long way round.
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    places = [each.replace("FILE", str(file)).replace("DIR", str(tmp_path)) for each in typed]
    ran = CliRunner().invoke(main, ["pipeline", *places])
    assert ran.exit_code == status, ran.output
    assert sentence.replace("FILE", str(file)) in " ".join(ran.output.split())
    assert len(ran.output.strip().splitlines()) == 1


@pytest.mark.parametrize("more", [[], ["--redis", "redis://x", "--conf", "x"]])
def test_a_refused_ingest_leaves_no_empty_directory(more: list[str], tmp_path: Path) -> None:
    lake = tmp_path / "new" / "lake"
    ran = CliRunner().invoke(main, ["pipeline", "ingest", "--lake", str(lake), *more])
    assert ran.exit_code == 2, ran.output
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_is_told_in_one_sentence() -> None:
    full = OSError(28, "No space left on device", "/data/lake/journal")
    with (
        pytest.raises(CommandRefused, match="No space left on device at /data/lake/journal; make room"),
        said_plainly(),
    ):
        raise full


@pytest.mark.parametrize(
    "text",
    [  # as deltalake and Spark word it on a full tmpfs
        "Failed to parse parquet: External: Generic LocalFileSystem error: Unable to copy data to file: "
        "No space left on device (os error 28)",
        "An error occurred while calling o47.count.\n: org.apache.spark.SparkException: Job aborted due to "
        "stage failure: Task 0 in stage 0.0 failed 1 times\njava.io.IOException: No space left on device",
        "Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device",
    ],
)
def test_a_full_disk_of_another_library_is_one_sentence_too(text: str) -> None:
    sentence = r"^No space left on device, of the lake, .*\(SPARK_LOCAL_DIRS, else /tmp\); make room"
    with pytest.raises(CommandRefused, match=sentence), said_plainly():
        raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="of another kind"), said_plainly():
        raise RuntimeError("of another kind")
    of_redis = "redis://r: Redis refuses the command: MISCONF No space left on device"
    with pytest.raises(LedgerUnavailable, match=of_redis), said_plainly():
        raise LedgerUnavailable(of_redis)


@pytest.mark.matrix
def test_a_full_disk_of_temporary_files_is_one_sentence_before_spark_starts(
    java: None, tmp_path: Path
) -> None:
    full, lake = tmp_path / "full", tmp_path / "lake"
    full.mkdir()
    lake.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", full], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a disk that is full")
    try:
        # With room for nothing at all Python would take another directory.
        (full / "filling").write_bytes(bytes(2**20 - 8192))
        ran = subprocess.run(
            [sys.executable, "-m", "celery_poison.cli.standalone", "pipeline", "blame", "--lake", lake],
            env={**os.environ, "TMPDIR": str(full)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    finally:
        subprocess.run(["umount", "--lazy", full], check=True)
    told = f"No space left on device at {full}; make room and run the command again, nothing is lost"
    assert (ran.returncode, ran.stderr.strip()) == (1, f"celery poison: {told}")


@pytest.mark.matrix
def test_no_library_warns_in_what_a_command_prints(java: None, tmp_path: Path) -> None:
    from examples.histories import World, write_lake

    write_lake(World(attempts=2_000, days=4, deploy_every_days=1), tmp_path / "lake")
    words = ["pipeline", "report", "--lake", str(tmp_path / "lake"), "--out", str(tmp_path / "page.html")]
    command = [sys.executable, "-m", "celery_poison.cli.standalone", *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{tmp_path / 'page.html'}\n"
    assert [line for line in ran.stderr.splitlines() if not re.fullmatch(r"\w+: \d+\.\d s", line)] == []
