"""One ingest at a time for each lake.

The lock is a file beside the checkpoint. Its holder writes a new beat into it every few seconds, and looks
before each commit whether it is still its own. One that does not beat any more is taken over: at once where
its process was of this machine and is gone, else after ``PATIENCE`` seconds of looking, by this side's clock
alone.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from types import TracebackType
from typing import Any

from celery_poison import procfs
from celery_poison.errors import PoisonError
from celery_poison.pipeline.files import Files

#: Seconds between two beats, and until a silent holder on another machine is given up.
BEAT, PATIENCE = 5.0, 30.0


class LakeLocked(PoisonError):
    """Another ingest works on this lake."""


class LockLost(PoisonError):
    """Another ingest took this one for dead: nothing more may be written."""


class Lock:
    """``with Lock(files, path): …``; raises :class:`LakeLocked` while another one holds it."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        self._mine = uuid.uuid4().hex
        self._beats = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="lake-lock")

    def __enter__(self) -> Lock:
        while not self._files.create(self._path, self._text()):
            holder = self._holder()
            if holder and not self._is_dead(holder):
                raise LakeLocked(
                    f"another ingest works on this lake: process {holder.get('pid')} on"
                    f" {holder.get('host')}; lock: {self._path}"
                )
            self._clear_away(holder)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._is_mine():
            self._files.delete(self._path)

    def _text(self) -> str:
        told = {"owner": self._mine, "beat": self._beats, "host": socket.gethostname()}
        return json.dumps({**told, "pid": os.getpid(), "born": _born(os.getpid())})

    @property
    def owner(self) -> str:
        """Names this holder to :func:`check`."""
        return self._mine

    def _holder(self) -> dict[str, Any]:
        return _told(self._files, self._path)

    def _is_mine(self) -> bool:
        return self._holder().get("owner") == self._mine

    def _is_dead(self, holder: dict[str, Any]) -> bool:
        if holder.get("host") == socket.gethostname():
            return _born(int(holder.get("pid") or 0)) != holder.get("born")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            time.sleep(min(1.0, PATIENCE / 10))
            if self._holder() != holder:
                return False
        return True

    def _clear_away(self, holder: dict[str, Any]) -> None:
        """Take a dead holder's lock away; of several who try, one succeeds."""
        aside = f"{self._path}.{self._mine}"
        if not self._files.rename(self._path, aside):
            return
        if _told(self._files, aside) != holder:  # another was quicker: that was the new lock
            self._files.rename(aside, self._path)
        self._files.delete(aside)

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            if not self._is_mine():
                return  # the next commit will notice
            self._beats += 1
            self._files.write(self._path, self._text())


def check(files: Files, path: str, owner: str) -> None:
    """Raise :class:`LockLost` unless the lock is still the owner's."""
    if _told(files, path).get("owner") != owner:
        raise LockLost("another ingest took over this lake, since this one had been silent")


def _told(files: Files, path: str) -> dict[str, Any]:
    """Return what a lock says; empty where it is gone or says nothing."""
    try:
        told = json.loads(files.read(path) or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _born(pid: int) -> str:
    """Return when a process of this machine was started, in the kernel's count; empty if it is gone."""
    found = procfs.process(pid)
    if found is None:
        return "" if pid <= 0 or not _exists(pid) else "running"
    return str(found.started)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
