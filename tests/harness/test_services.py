"""What a machine lacks is told at the end of a run and fails in CI; what is marked is run by tox."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests import services
from tests.apps.harness import ROOT
from tests.services import summary

TESTS = {
    "test_of_a_service.py": """
from tests.services import need

def test_of_a_broker():
    need(False, "RabbitMQ")

def test_of_nothing():
    pass
""",
    "test_of_a_package.py": "import pytest\npytest.importorskip('no_such_package')\n",
    "test_of_an_engine.py": "import pytest\ndef test_it(): pytest.skip('no Docker engine answers')\n",
}


def run(directory: Path, *names: str, **environ: str) -> subprocess.CompletedProcess[str]:
    for name in names or TESTS:
        (directory / name).write_text(TESTS[name])
    (directory / "pytest.ini").write_text("[pytest]\n")
    options = ["-p", "tests.services", "-p", "no:celery", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options.append("--continue-on-collection-errors")
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(names or TESTS)],
        env=kept | {"PYTHONPATH": str(ROOT)} | environ,
        cwd=directory,
        capture_output=True,
        text=True,
    )


def test_a_run_tells_at_its_end_what_was_skipped_and_how_to_have_it(tmp_path: Path) -> None:
    ran = run(tmp_path)
    told = ran.stdout.partition("not run here")[2]
    assert ran.returncode == 0, ran.stdout
    assert "1 skipped: RabbitMQ is not installed. To have it: apt-get install rabbitmq-server" in told
    assert "1 skipped: could not import 'no_such_package'" in told and "pip install -e" in told
    assert "1 skipped: no Docker engine answers. To have it: start a Docker engine" in told


def test_in_CI_a_skip_is_a_failure_except_for_what_it_cannot_have(tmp_path: Path) -> None:
    ran = run(tmp_path, CI="true")
    assert ran.returncode, ran.stdout
    assert "CI must not skip: RabbitMQ is not installed" in ran.stdout
    assert "CI must not skip: could not import 'no_such_package'" in ran.stdout
    assert "CI must not skip: no Docker" not in ran.stdout and "no Docker engine answers" in ran.stdout


def test_ci_runs_the_command_of_the_readme_word_for_word() -> None:
    commands = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    (command,) = {line.strip() for line in commands if line.endswith("pytest -n 6")}
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert command in {line.strip() for line in script}


def test_one_line_for_each_cure_however_many_reasons_there_were() -> None:
    reasons = [
        "redis-server is not installed",
        "could not import 'a'",
        "could not import 'b'",
        "redis-server",
    ]
    lines = [*summary(Counter(reasons))]
    assert len(lines) == 2 and all(
        line.startswith("2 skipped: ") and "To have it: " in line for line in lines
    )
    assert len([*summary(Counter([*services.CURES]))]) == services.LINES


def test_tox_runs_every_test_of_the_matrix_wherever_it_is() -> None:
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini")
    assert '-m "matrix or diagonal"' in tox["testenv:matrix"]["commands"]
    assert "tests/" not in tox["testenv:matrix"]["commands"]
    assert f'-m "{services.ALL}"' in tox["testenv:all"]["commands"]
    assert "spark" in tox["testenv"]["extras"], "else those of the pipeline are skipped"
