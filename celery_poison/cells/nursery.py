"""The nursery: a process that a worker forks before its pool, which does nothing but fork cells.

It has what pool processes have: the command line, options, fixups, loaded models, the environment, signals
that are sent once per worker. It is in a session of its own, ends with its worker, and says so in the ledger:
a worker whose end was seen is not waited for.
"""

from __future__ import annotations

import _socket
import gc
import importlib
import os
import select
import signal
import socket
import stat
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any, NoReturn

from billiard import process
from celery import Celery, platforms
from celery.app.utils import find_app

from celery_poison.basics import procfs
from celery_poison.basics.forking import have_own_hub, no_fork, unpatched
from celery_poison.basics.procfs import MemoryGroup
from celery_poison.basics.text import apps_given
from celery_poison.cells.cell import be_cell, pair
from celery_poison.cells.watcher import NURSERY, WATCHER, Memory, be_watched, end_with_parent, rename, watch
from celery_poison.plugin import plugin_of

#: Seconds for which a nursery outlives its worker at most.
LINGER = 5

#: A process that may not be forked runs this in a fresh one.
_FRESH = """import sys; sys.path[:], sys.argv[:] = {path!r}, {argv!r}
import celery; celery.maybe_patch_concurrency(["-P", {pool!r}])
from celery_poison.cells.nursery import load_and_serve; load_and_serve(*{arguments!r})"""


class Nursery:
    """A worker's nursery, as the worker sees it.

    Attributes:
        has: what the worker had that no process may share, so that the nursery loads the app anew.
    """

    def __init__(self, pid: int, orders: Any, has: str = "") -> None:
        self.pid, self._orders, self.has = pid, orders, has

    @classmethod
    def forked(cls, app: Celery, name: str) -> Nursery:
        """Fork one for the worker of this ``name`` in the ledger; raise OSError where that cannot be."""
        parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a user's own
                stream.flush()
        gc.freeze()
        with no_fork():
            ours, other = pair()
        with closing(other):
            pid = unpatched("os", "fork")()
            if not pid:
                try:
                    ours.close()
                    _serve(other, parent, name, app)
                finally:
                    os._exit(0)
        return cls(pid, ours)

    @classmethod
    def loaded(cls, name: str, has: str, patched_for: str) -> Nursery:
        """Start one that loads the app anew.

        Args:
            has: why this process is not forked.
            patched_for: the pool for whose greenlets this process is patched; empty: it is not.

        Raises:
            LookupError: no other process could load this app.
            OSError: no process can be started.
        """
        is_celery = os.path.basename(sys.argv[0]).startswith(("celery", "__main__"))
        if not is_celery or not (app := next(apps_given(), "")):
            raise LookupError("no `celery -A` names the app, so that no other process could load it")
        ours, other = pair()
        with closing(other):
            os.set_inheritable(other.fileno(), True)
            arguments = app, other.fileno(), os.getpid(), name
            code = _FRESH.format(path=sys.path, argv=sys.argv, pool=patched_for, arguments=arguments)
            pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
        return cls(pid, ours, has)

    def fork(self, limit: int, fds: list[int]) -> None:
        """Let it fork a cell, given the watcher's socket, the cell's socket, the box and the worker's lease.

        Args:
            limit: bytes of memory that the cell may have; 0: as much as there is.

        Raises:
            OSError: it has ended, or has much to do.
        """
        socket.send_fds(self._orders, [b"%d" % limit], fds)

    def has_ended(self) -> bool:
        return not procfs.is_alive(self.pid)

    def end(self) -> None:
        """End it, and wait for that. Cells that it has forked go on. Safe to call again."""
        with suppress(OSError):  # it was waited for: its number may be another process' by now
            if not os.waitpid(self.pid, os.WNOHANG)[0]:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)


# --- where the pool does not fork --------------------------------------------------------------------


def unshareable() -> str:
    """Return what this process has that no forked process may share, where its app is not made for forks."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "threads"
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # it was the list's own, or is connected to nothing
            if fd > 2 and stat.S_ISSOCK(os.fstat(fd).st_mode):  # a journal's may be below
                with closing(_socket.socket(fileno=os.dup(fd))) as sock:
                    sock.getpeername()
                    if sock.type == socket.SOCK_STREAM:
                        return "open connections"
    return ""


def load_and_serve(app_name: str, orders: int, parent: int, name: str) -> None:
    """Be the nursery of a worker whose own process may not be forked."""
    app = find_app(app_name)
    app.loader.import_default_modules()
    if has := unshareable():
        sys.exit(f"celery_poison: suspects cannot be tried in cells: the app has {has} once it is loaded")
    _serve(_socket.socket(fileno=orders), parent, name, app, is_fresh=True)


# --- in the nursery ----------------------------------------------------------------------------------


def _serve(orders: Any, parent: int, name: str, app: Celery, *, is_fresh: bool = False) -> None:
    """Fork a watcher with a cell for every order, until the worker ``name``, process ``parent``, is gone."""
    os.setsid()
    end_of_worker = os.pidfd_open(parent)
    if os.getppid() != parent:
        return
    former = procfs.name(parent)
    rename(NURSERY)
    # What a service manager sends to every process: the worker says when these end. The kernel reaps them.
    ignored = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD
    handlers = {signum: signal.signal(signum, signal.SIG_IGN) for signum in ignored}
    importlib.import_module("celery.concurrency.prefork")  # not in other pools' workers: hooks.py
    _make_cells_cheap()
    ledger = None if is_fresh else plugin_of(app).open_ledger()
    gc.freeze()

    def be(said: int, box: int, lease: int) -> int:
        """Be a cell, with the name and the handlers that the worker had."""
        rename(former)
        for signum, handler in handlers.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        return be_cell(_socket.socket(fileno=said), os.fdopen(box, "r+b"), (app, ledger, lease))

    for data, fds in _orders(orders, end_of_worker):
        with suppress(OSError):  # no process can be forked: the worker hears that its sockets are closed
            if not unpatched("os", "fork")():
                orders.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _be_watcher(int(data), end_of_worker, fds, be)
        for fd in fds:  # now: gevent (25.8) leaves that to a hub, which does not run here
            unpatched("os", "close")(fd)
    _say_that_it_ended(app, name)


def _orders(orders: Any, end_of_worker: int) -> Iterator[tuple[bytes, list[int]]]:
    """Yield the limit of each cell that is wanted, and its descriptors, until the worker has ended."""
    wanted = unpatched("select", "poll")()
    for fd in (orders.fileno(), end_of_worker):
        wanted.register(fd, select.POLLIN)
    while end_of_worker not in dict(wanted.poll()):
        data, fds, _, _ = socket.recv_fds(orders, 1 << 16, 4, socket.MSG_CMSG_CLOEXEC)
        if data:
            yield data, fds
            continue
        wanted.unregister(orders)  # closed by the end of the worker, or by what its process has become
        if not wanted.poll(1000 * LINGER):
            os._exit(0)


def _say_that_it_ended(app: Celery, name: str) -> None:
    """Tell the monitors what they cannot know: that the worker's connections will not come back (EMS-2)."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LINGER)
    have_own_hub()
    with suppress(Exception):  # a little later they see it for themselves
        plugin_of(app).open_ledger().fleet.ended(name)


def _make_cells_cheap() -> None:
    """Leave out what each cell would do at its beginning in vain."""
    # Celery's own has a declaration in C parsed each time, where cffi is installed.
    platforms.set_pdeathsig = lambda _: end_with_parent(os.getppid())
    # billiard renews the locks of all handlers, which Python has done: to find them it touches every logger,
    # and so copies 0.7 MB. It is shown a process that has none.
    none = SimpleNamespace(Logger=SimpleNamespace(manager=SimpleNamespace(loggerDict={})))
    none.getLogger = lambda _: SimpleNamespace(handlers=())
    process.logging = none


def _be_watcher(limit: int, end_of_worker: int, fds: list[int], be: Any) -> NoReturn:
    """Be the watcher of a cell, and then, in another process, that cell."""
    control, *of_cell = fds
    code = 1
    try:
        os.setsid()
        rename(WATCHER)
        watcher, group = os.getpid(), MemoryGroup()
        pid = unpatched("os", "fork")()
        for fd in of_cell if pid else (control, end_of_worker):
            unpatched("os", "close")(fd)
        if pid:
            watch(_socket.socket(fileno=control), end_of_worker, Memory(pid, limit, group))
            code = 0
        else:
            be_watched(watcher)
            code = be(*of_cell)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
