"""The command line of a fleet's app."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_poison.cli.celery_command import poison
from tests import PATIENCE
from tests.apps.harness import ROOT, Fleet


@dataclass
class Console:
    """Runs verbs on an app in this process."""

    app: Celery

    def run(self, *arguments: str, status: int = 0, input: str | None = None) -> Result:
        context = CLIContext(app=self.app, no_color=False, workdir=None)
        result = CliRunner().invoke(poison, arguments, obj=context, input=input)
        told = f"{arguments}: {result.exit_code}\n{result.stdout}\n{result.stderr}\n{result.exception!r}"
        assert result.exit_code == status, told
        assert "Traceback" not in result.output
        return result

    def out(self, *arguments: str, **options: Any) -> str:
        return self.run(*arguments, **options).stdout

    def json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self.run(*arguments, "--json", **options).stdout)


@pytest.fixture
def console(fleet: Fleet) -> Console:
    return Console(fleet.app)


@pytest.fixture(scope="session")
def entry_points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that, on the path, declares what pyproject.toml declares, installed or not."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    directory = tmp_path_factory.mktemp("declared")
    info = directory / f"celery_poison-{declared['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: celery-poison\nVersion: {declared['version']}\n"
    )
    (info / "entry_points.txt").write_text(
        "\n".join(
            f"[{group}]\n" + "\n".join(f"{name} = {place}" for name, place in points.items())
            for group, points in declared["entry-points"].items()
        )
    )
    return directory


@pytest.fixture
def celery(fleet: Fleet, entry_points: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs `celery -A <the fleet's app> ...` as a process of its own."""
    path = os.pathsep.join([str(entry_points), str(ROOT)])

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", "tests.apps.fleet", *arguments],
            env=os.environ | fleet.environ() | {"PYTHONPATH": path} | environ,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run
