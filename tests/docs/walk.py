"""Doing what the tutorial says, command by command, and what is really printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from celery import Celery

from celery_poison import Quarantine, install
from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.docs.pages import ROOT, blocks, indented

#: What is typed before the first worker starts: an environment that these tests have already.
SET_UP = ("python -m venv", ".venv/bin/pip", ". .venv", "cd ")
#: An id as the page prints it.
SHOWN = re.compile(r"\b[0-9a-f]{8}\b(?:-…|(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})?")


class Walk:
    """Somebody with two terminals.

    Args:
        url: of the Redis that the tutorial asks for.
        directory: for the logs.
    """

    def __init__(self, url: str, directory: Path) -> None:
        self._directory = directory
        self._env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "SHOP_BROKER": url,
            "SHOP_BACKEND": url,
        }
        self._app = Celery("shop", broker=url, backend=url, set_as_current=False)
        install(self._app)
        self._worker: subprocess.Popen[bytes] | None = None
        self._logs: list[IO[bytes]] = []
        self._id = ""
        self.statuses: dict[str, int] = {}

    def type(self, command: str) -> None:
        """Type one line of the page, with the id of the newest poison for the one that is printed."""
        command = SHOWN.sub(lambda shown: self._id[:8] if len(shown[0]) == 8 else self._id, command)
        if command.startswith(SET_UP):
            return
        if "shop worker" in command:
            self.press_ctrl_c()
            self._start(command)
        else:
            self._run(command)

    def press_ctrl_c(self) -> None:
        """In the worker's terminal: everything there gets SIGINT. It must end by that."""
        if self._worker is not None:
            os.killpg(self._worker.pid, signal.SIGINT)
            self._worker.wait(PATIENCE)
            self._worker = None

    def close(self) -> None:
        """Leave nothing running."""
        if self._worker is not None:
            os.killpg(self._worker.pid, signal.SIGKILL)
            self._worker.wait()
        for log in self._logs:
            log.close()
        self._app.close()

    @property
    def seen(self) -> str:
        """All that was printed in both terminals."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._directory.glob("*.txt")))

    def _start(self, command: str) -> None:
        self._worker = subprocess.Popen(
            ["bash", "-c", command], start_new_session=True, **self._options("worker")
        )

    def _run(self, command: str) -> None:
        done = subprocess.run(["bash", "-c", command], timeout=PATIENCE, **self._options("typed"))
        self.statuses[command] = done.returncode
        sent = re.search(r"^(?:thumbnail|report) (\S+)$", self._last(), re.MULTILINE)
        if sent:
            self._id = sent.group(1)
            wait_until(self._is_kept, PATIENCE, what=lambda: self.seen[-5000:])
        elif command.split()[4:5] in (["release"], ["fail"]):
            wait_until(self._app.AsyncResult(self._id).ready, PATIENCE, what=lambda: self.seen[-5000:])

    def _is_kept(self) -> bool:
        return any(record.id == self._id for record in Quarantine(self._app).list())

    def _options(self, name: str) -> dict[str, object]:
        log = (self._directory / f"{len(self._logs):02}-{name}.txt").open("wb")
        self._logs.append(log)
        return {"cwd": ROOT / "examples", "env": self._env, "stdout": log, "stderr": log}

    def _last(self) -> str:
        return Path(self._logs[-1].name).read_text()


def typed(page: str) -> list[str]:
    """The lines that a page tells to type, in order."""
    return [line for block in indented(page) for line in block]


def shown(page: str) -> list[str]:
    """The lines that a page says one will see."""
    return [line for block in blocks(page, "text") for line in block.splitlines() if line.strip(" …")]


def alike(line: str) -> str:
    """A line without what differs from run to run: ids, numbers, times, host names, widths of columns."""
    line = re.sub(r"@[\w.-]+", "@host", line)
    line = re.sub(r"\(/\S*/", "(/", line)
    line = SHOWN.sub("ID", line)
    line = re.sub(r"\b[0-9a-f]*\d[0-9a-f]*\b", "0", line)
    line = re.sub(r"\d+", "0", line).replace("messages", "message")
    return " ".join(line.split())
