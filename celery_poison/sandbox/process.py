"""One cell as its worker sees it: opened, given suspects, watched until it ends."""

from __future__ import annotations

import json
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery_poison import procfs
from celery_poison.forking import no_fork
from celery_poison.sandbox.trial import Death, Setup, info_of, receive, send

#: Seconds in which an app must be loaded.
LOADING = 120.0
#: Seconds that the end of a process is waited for which was told to end, or was killed.
ENDING = 5.0
#: Seconds in which a cell that says nothing more should have ended by itself.
EXITING = 1.0

#: The watcher, in this package without its ``__init__``, which would import Celery.
_WATCHER = f"""import sys, types
package = sys.modules["celery_poison"] = types.ModuleType("celery_poison")
package.__path__ = [{str(Path(__file__).parents[1])!r}]
from celery_poison.sandbox.watcher import main; main()"""
_CELL = """import sys; sys.path[:] = {path!r}
import celery; celery.maybe_patch_concurrency(["-P", {pool!r}])
from celery_poison.sandbox.child import main; main({fds})"""


class CannotOpen(Exception):
    """There is no cell to be had. No message is to blame for it.

    Attributes:
        was_killed: it was killed while it opened, which another one need not be.
    """

    was_killed = False


class OpenCell:
    """A watcher and its cell.

    Args:
        setup: how it becomes a cell for this worker.
        limit: bytes of memory that it may have; 0: as much as there is.
        lease: descriptor of the memory in which the worker keeps its lease.

    Raises:
        CannotOpen: the processes could not be started, or the app could not be loaded in them.
    """

    def __init__(self, setup: Setup, limit: int, lease: int) -> None:
        self.pid = 0
        self.tasks: frozenset[str] = frozenset()
        self._death: Death | None = None
        self._is_silent = False  # the cell has told all that it had to tell
        self._told = b""
        self._start(setup, limit, lease)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._data, selectors.EVENT_READ)
        try:
            send(self._data, setup)
            self._await_ready()
        except CannotOpen:
            self.close(kill=True)
            raise
        except OSError as error:
            self.close(kill=True)
            raise CannotOpen(str(error)) from error

    def _start(self, setup: Setup, limit: int, lease: int) -> None:
        script = setup.origin.script  # Celery must find it before it is imported, to name tasks as here
        # A pool process that were forked meanwhile would hold the other ends open for ever.
        with no_fork():
            self._control, watchers = socket.socketpair()
            self._data, cells = socket.socketpair()
            with watchers, cells:
                fds = f"{cells.fileno()},{lease}"
                watcher = [sys.executable, "-I", "-S", "-c", _WATCHER]
                told = [str(os.getpid()), str(watchers.fileno()), fds, str(limit)]
                code = _CELL.format(path=sys.path, pool=setup.patched_for, fds=fds)
                try:
                    self._watcher = subprocess.Popen(
                        [*watcher, *told, sys.executable, "-c", code],
                        start_new_session=True,
                        pass_fds=(watchers.fileno(), cells.fileno(), lease),
                        stdin=subprocess.DEVNULL,
                        env={**os.environ, "MP_MAIN_FILE": script} if script else None,
                    )
                except (OSError, ValueError) as error:
                    self._control.close()
                    self._data.close()
                    raise CannotOpen(f"no process could be started: {error}") from error

    def _await_ready(self) -> None:
        deadline = time.monotonic() + LOADING
        while time.monotonic() < deadline:
            event = self.next(1.0)
            if isinstance(event, Death):
                error = CannotOpen(f"the app cannot be loaded in a fresh process (see above): {event}")
                error.was_killed = event.was_killed
                raise error
            if event is not None:
                _, self.pid, tasks = event
                self.tasks = frozenset(tasks)
                return
        raise CannotOpen(f"the app was not loaded in {LOADING:g} s")

    def run(self, arguments: tuple[Any, ...], alone: int) -> None:
        """Let the cell run a suspect.

        Raises:
            OSError: it is gone.
            Exception: what the arguments raise when they are pickled.
        """
        self.order(b"b")
        send(self._data, (arguments, alone))

    def order(self, word: bytes) -> None:
        """``b"k"``: kill the cell. ``b"s"``: interrupt it, as a soft limit does. ``b"b"``: a trial begins."""
        with suppress(OSError):
            self._control.sendall(word)

    def kill(self) -> None:
        """Kill the cell, if need be with a watcher that does not obey: a suspect may have stopped it."""
        self.order(b"k")
        if not self._selector.select(ENDING):
            self.abandon()

    @property
    def is_watched(self) -> bool:
        """Whether its watcher lives."""
        return self._watcher.poll() is None

    def abandon(self) -> None:
        """Kill the watcher, and so the cell; what that has started may stay."""
        self._watcher.kill()

    def next(self, timeout: float) -> Any:
        """Return what the cell says next, its Death at the end of all, None after ``timeout`` seconds."""
        if self._death is not None and self._is_silent:
            return self._death
        ready = {key.fileobj for key, _ in self._selector.select(0.0 if self._death else max(0.0, timeout))}
        if self._control in ready:
            self._hear_watcher()
        if self._data in ready or self._death is not None:
            said = self._hear_cell()
            if said is not None:
                return said
        return self._death

    def _hear_cell(self) -> Any:
        # Something that it started may hold the other end, and the end of this message may never come.
        self._data.settimeout(None if self._death is None else 0.2)
        try:
            said = receive(self._data)
        except (EOFError, OSError):
            self._await_death()
            return None
        if said[0] != "result":
            return said
        _, ok, value, stays = said
        try:
            return "result", ok, pickle.loads(value), stays
        except Exception as error:  # it cannot be read here: an exception's class that is not to be found
            return "result", False, info_of(error), stays

    def _hear_watcher(self) -> None:
        try:
            part = self._control.recv(4096)
        except OSError:
            part = b""
        if not part:
            self._ended_without_watcher()
        self._told += part
        *lines, self._told = self._told.split(b"\n")
        for line in lines:
            facts = json.loads(line)
            self.pid = facts.get("pid", self.pid)
            if "status" in facts:
                self._death = Death(facts["status"], facts["peak"], facts["why"])

    def _await_death(self) -> None:
        # It ends by itself, mostly, and how it does so is evidence; or it has closed what it does not know.
        self._is_silent = True
        self._selector.unregister(self._data)
        if self._death is None and not self._selector.select(EXITING):
            self.order(b"k")
        self._control.settimeout(ENDING)
        while self._death is None:
            self._hear_watcher()

    def _ended_without_watcher(self) -> None:
        """Make sure that the cell has ended too; the kernel does that where it can."""
        if self._death is not None:
            return
        self._death = Death(None)
        deadline = time.monotonic() + ENDING
        while self.pid and procfs.is_alive(self.pid) and time.monotonic() < deadline:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)
        with suppress(OSError):  # what it has started; its watcher would have done so
            if self.pid:
                os.killpg(self.pid, signal.SIGKILL)

    def close(self, *, kill: bool = False) -> None:
        """End both processes, and wait for it."""
        self.order(b"k" if kill else b"")
        self._selector.close()
        for sock in (self._data, self._control) if kill else (self._data,):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        try:
            self._watcher.wait(ENDING)
        except subprocess.TimeoutExpired:
            self._watcher.kill()
            self._watcher.wait()
            if self.pid:
                self._ended_without_watcher()
        self._data.close()
        self._control.close()
