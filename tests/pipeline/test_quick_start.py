"""An archive of Java's classes, and a warm Spark Connect server: a report without Java's start (NEW-7)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from celery_poison.cli.pipeline_checks import connect_server
from celery_poison.pipeline import session
from tests import PATIENCE

_MAPPED = """
from pathlib import Path
from celery_poison.pipeline.session import open_session
session = open_session("local[1]")
java = session._jvm.java.lang.ProcessHandle.current().pid()
words = Path(f"/proc/{java}/maps").read_text().split()
print(*sorted({word for word in words if word.endswith(".jsa")}))
session.stop()
"""
#: A PySpark whose server has a version, or refuses as gRPC words it.
_STAND_IN = """
class SparkSession:
    class builder:
        def remote(url): return SparkSession.builder
        def getOrCreate(): return SparkSession()
    @property
    def version(self):
        if not "VERSION":
            raise RuntimeError('<RPC that terminated with:\\n\\tdetails = "no token"\\n>')
        return "VERSION"
"""


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a session of an earlier test nor this user's cache."""
    pytest.importorskip("pyspark")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("SPARK_CONF_DIR", "JAVA_HOME", "POISON_MASTER"):
        monkeypatch.setenv(name, "")  # so that it is put back, whatever the code does to it
        monkeypatch.delenv(name)


def test_NEW_7_java_is_given_an_archive_of_classes_that_was_made_for_it_and_no_other(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'version "17.0.1"\' >&2 || echo "$@"\n')
    java.chmod(0o755)

    def asked() -> str:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
        monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
        session._prepare_environment("local[1]")
        told = [f"{os.environ['JAVA_HOME']}/bin/java", "--add-modules=jdk.incubator.vector", "Main"]
        return subprocess.run(told, capture_output=True, text=True, check=True).stdout

    assert "SharedArchiveFile" not in asked()
    for home, given in ((tmp_path / "other", False), (tmp_path / "java", True)):
        archive = session.archive_of(home)
        archive.parent.mkdir(parents=True)
        archive.touch()
        assert (f"-XX:SharedArchiveFile={archive}" in asked()) == given
    assert not any(Path(os.environ["SPARK_CONF_DIR"]).glob("*"))
    assert "incubator" not in asked()


@pytest.mark.matrix
def test_NEW_7_quick_start_makes_the_archive_that_the_next_java_maps(
    java: None, clean_environment: None
) -> None:
    words = [sys.executable, "-m", "celery_poison.cli.standalone", "pipeline", "quick-start"]
    made = subprocess.run(words, capture_output=True, text=True, timeout=4 * PATIENCE, check=True)
    archive, _, size = made.stdout.partition(": ")
    assert Path(archive).stat().st_size > 2**25 and "MiB" in size
    mapped = subprocess.run([sys.executable, "-c", _MAPPED], capture_output=True, text=True, check=True)
    assert archive in mapped.stdout.split()
    # Nothing is said about it, even where Java cannot use it.
    Path(archive).write_bytes(b"no archive")
    spoilt = subprocess.run([sys.executable, "-c", _MAPPED], capture_output=True, text=True, check=True)
    assert archive not in spoilt.stdout and (spoilt.stdout.count("\n"), spoilt.stderr) == (1, "")


@pytest.mark.parametrize(
    ("server", "level", "says"),
    [
        ("4.3.0", "ok", "Spark 4.3.0 answers at localhost"),
        (
            "4.1.4",
            "warn",
            "Spark 4.1.4 answers at localhost, where POISON_MASTER says, and here is PySpark 4.3.0",
        ),
        ("", "warn", "gives no version: no token"),
    ],
)
def test_NEW_7_doctor_compares_a_server_that_answers_with_the_pyspark_that_is_here(
    server: str,
    level: str,
    says: str,
    clean_environment: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    stand_in = tmp_path / "pyspark"
    stand_in.mkdir()
    (stand_in / "__init__.py").write_text("__version__ = '4.3.0'")
    (stand_in / "sql.py").write_text(_STAND_IN.replace("VERSION", server))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert [*connect_server()] == []
    monkeypatch.setenv("POISON_MASTER", "sc://localhost:15002/;token=secret")
    (finding,) = connect_server()
    assert finding.level == level and says in finding.said and "secret" not in finding.said
    assert ("daily-report.md" in finding.cure) == (level == "warn")
