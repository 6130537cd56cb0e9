"""Starts `celery-poison demo` and looks at what it prints and what it leaves."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from threading import Thread

from celery_poison.basics import procfs
from tests import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
TAG = "POISON_DEMO_TEST"


class DemoProcess:
    """One run, with a temporary directory of its own, so that anything left in it is seen.

    `terminal` shows it a terminal of 80 by 40 instead of pipes; `environment` is laid over ours.
    """

    def __init__(self, *arguments: str, directory: Path, terminal: bool = False, **environment: str) -> None:
        self.directory = directory
        self._tag = str(directory)
        self._terminal = Terminal() if terminal else None
        stream = self._terminal.end if self._terminal else subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-m", "celery_poison.cli.standalone", "demo", *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(directory), TAG: self._tag, **environment},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            text=True,
            start_new_session=True,
        )

    def await_line(self, pattern: str) -> str:
        """Wait until it prints such a line on stderr, and return that."""
        assert self.process.stderr is not None
        seen = []
        for line in self.process.stderr:
            if re.search(pattern, line):
                return line
            seen.append(line)
        raise AssertionError(f"it ended without {pattern!r}: {''.join(seen)}")

    def finish(self, timeout: float = 2 * PATIENCE) -> tuple[int, str, str]:
        """Wait for its end; exit status, stdout and stderr (both in the first, on a terminal)."""
        out, err = self.process.communicate(timeout=timeout)
        if self._terminal:
            out, err = self._terminal.read_all(), ""
        return self.process.returncode, out, err

    def stop(self) -> None:
        """End it if it still runs, and whatever it should not have left behind."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Everything that this run started and that is alive, itself included."""
        return procfs.carrying(TAG, self._tag)

    def leftovers(self) -> list[str]:
        """Processes and files that outlived it."""
        files = [str(path) for path in self.directory.iterdir()]
        return [f"process {pid}" for pid in self.processes()] + files


class Terminal:
    """A pseudo-terminal, and everything that was written to it."""

    def __init__(self) -> None:
        self._ours, self.end = pty.openpty()
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        self._seen = bytearray()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def read_all(self) -> str:
        """Return what was written; nobody may write any more."""
        os.close(self.end)
        self._reader.join()
        os.close(self._ours)
        return self._seen.decode()

    def _read(self) -> None:
        try:
            while data := os.read(self._ours, 4096):
                self._seen += data
        except OSError:
            return  # Linux' way of saying that the other end was closed
