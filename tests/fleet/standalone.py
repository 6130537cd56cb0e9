"""`celery poison monitor` as a process that can be stopped, revived and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.apps.harness import ROOT, Fleet


class MonitorProcess:
    """A standalone monitor of a fleet, in a session of its own.

    Args:
        entry_points: a directory that declares the `celery poison` command.
        args: further options.
    """

    def __init__(self, fleet: Fleet, entry_points: Path, name: str = "monitor", *args: str) -> None:
        self._path = fleet.directory / f"{name}.jsonl"
        self._log = fleet.directory / f"{name}.log"
        environ = os.environ | fleet.environ()
        environ |= {"PYTHONPATH": os.pathsep.join([str(entry_points), str(ROOT)]), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "celery", "-A", fleet.module, "poison", "monitor", "--json", *args]
        with self._path.open("wb") as out, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=environ,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def told(self, *kinds: str) -> list[dict[str, Any]]:
        """Return what it said on its standard output, every line of it JSON."""
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [line for line in lines if not kinds or line["event"] in kinds]

    def log_text(self) -> str:
        return self._log.read_text()

    @property
    def name(self) -> str:
        """The name under which it competes for the lock."""
        wait_until(lambda: "watches" in self.log_text(), what=self.log_text)
        return next(line.split()[2] for line in self.log_text().splitlines() if line.endswith("watches"))

    @property
    def metrics(self) -> str:
        """What it tells Prometheus now."""
        wait_until(lambda: "metrics at" in self.log_text(), what=self.log_text)
        (url,) = re.findall(r"metrics at (\S+)", self.log_text())
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return str(answer.read(), "utf-8")

    def await_active(self) -> str:
        wait_until(lambda: self.told("monitor_changed"), what=self.log_text)
        return self.name

    def end(self) -> int:
        """SIGTERM, and its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    def __enter__(self) -> MonitorProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
