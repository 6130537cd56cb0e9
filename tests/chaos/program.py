"""Starts `python -m tests.chaos` and looks at what it prints and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from celery_poison.basics import procfs
from tests import PATIENCE

TAG = "POISON_CHAOS_TEST"
ROOT = Path(__file__).resolve().parents[2]


class ChaosProcess:
    """One run of the program, with a temporary directory of its own; `stop` leaves nothing of it."""

    def __init__(self, *arguments: str, directory: Path) -> None:
        self.directory, self._tag = directory, str(directory)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos", *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(directory), TAG: self._tag},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def await_line(self, part: str) -> None:
        """Wait until it prints such a line on stderr."""
        assert self.process.stderr is not None
        seen = []
        for line in self.process.stderr:
            if part in line:
                return
            seen.append(line)
        raise AssertionError(f"it ended without {part!r}: {''.join(seen)}")

    def finish(self, timeout: float) -> tuple[dict[str, Any], str]:
        """Wait for its end; what it tells as JSON, and its progress."""
        out, err = self.process.communicate(timeout=timeout)
        return json.loads(out) if out.startswith("{") else {}, err

    def leftovers(self) -> list[str]:
        """Processes and files that outlive it."""
        files = [str(path.relative_to(self.directory)) for path in self.directory.iterdir()]
        return [*map(str, procfs.carrying(TAG, self._tag)), *files]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=PATIENCE)
        for pid in procfs.carrying(TAG, self._tag):
            os.kill(pid, signal.SIGKILL)
