"""The nursery: a process that a worker forks before its pool, which does nothing but fork cells.

It has what pool processes have: the command line, options, fixups, loaded models, the environment, signals
that are sent once per worker. It is in a session of its own, and ends with its worker.
"""

from __future__ import annotations

import _socket
import gc
import os
import pickle
import signal
import socket
import stat
import sys
import traceback
from contextlib import closing, suppress
from typing import Any, NamedTuple, NoReturn

from celery import Celery
from celery.app.utils import find_app

from celery_poison import procfs
from celery_poison.forking import no_fork, unpatched
from celery_poison.sandbox.cell import Box, be_cell
from celery_poison.sandbox.trial import Order
from celery_poison.sandbox.watcher import NURSERY, end_with_parent, name, watch
from celery_poison.text import apps_given

#: What a service manager sends to every process: the worker says when these end.
_NOT_FOR_US = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_KIND = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC


def pair() -> tuple[Any, Any]:
    """Return two sockets of the operating system that are connected, also where greenlets have others."""
    return _socket.socketpair(socket.AF_UNIX, _KIND)


class Nursery:
    """A worker's nursery, as the worker sees it."""

    def __init__(self, pid: int, orders: Any) -> None:
        self.pid, self.socket = pid, orders
        self.socket.setblocking(False)

    @classmethod
    def forked(cls, app: Celery) -> Nursery:
        """Fork one.

        Raises:
            OSError: no process can be forked.
        """
        worker = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a user's own
                stream.flush()
        with no_fork():
            ours, other = pair()
        gc.freeze()
        with closing(other):
            pid = _fork()
            if not pid:
                try:
                    ours.close()
                    _serve(other, worker, app)
                finally:
                    os._exit(0)
        return cls(pid, ours)

    @classmethod
    def loaded(cls, app: Celery, patched_for: str) -> Nursery:
        """Start one that loads the app anew.

        Args:
            patched_for: the pool for whose greenlets this process is patched; empty: it is not.

        Raises:
            LookupError: no other process could load this app.
            OSError: no process can be started.
        """
        name = _name_of(app)
        ours, other = pair()
        with closing(other):
            os.set_inheritable(other.fileno(), True)
            told = {"name": name, "orders": other.fileno(), "worker": os.getpid()}
            code = _FRESH.format(path=sys.path, argv=sys.argv, pool=patched_for, told=told)
            null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
            command = [sys.executable, "-c", code]
            return cls(os.posix_spawn(command[0], command, os.environ, file_actions=[null]), ours)

    def fork(self, order: Order, fds: list[int]) -> None:
        """Let it fork a cell.

        Args:
            fds: of the watcher's socket, the cell's socket, the box, the worker's lease.

        Raises:
            BlockingIOError: it has much to do; ask again.
            OSError: it has ended.
        """
        socket.send_fds(self.socket, [pickle.dumps(order)], fds)

    def end(self) -> None:
        """End it, and wait for that. Cells that it has forked go on."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(OSError):
            os.waitpid(self.pid, 0)
        self.socket.close()


# --- one that loads the app anew ---------------------------------------------------------------------

_FRESH = """import sys; sys.path[:], sys.argv[:] = {path!r}, {argv!r}
import celery; celery.maybe_patch_concurrency(["-P", {pool!r}])
from celery_poison.sandbox.nursery import load_and_serve; load_and_serve(**{told!r})"""


def _name_of(app: Celery) -> str:
    """Return what ``celery -A`` takes for an app.

    Raises:
        LookupError: it is in no module.
    """
    is_celery = os.path.basename(sys.argv[0]).startswith(("celery", "__main__"))
    if is_celery and (name := next(apps_given(), "")):
        return name
    for module in list(sys.modules.values()):
        spec: Any = getattr(module, "__spec__", None)
        for attribute, value in list(vars(module).items()) if spec else ():
            if value is app and attribute[0] != "_" and spec.name.partition(".")[0] != "celery":
                return f"{spec.name}:{attribute}"
    raise LookupError("the app is in no module from which another process could load it")


def load_and_serve(name: str, orders: int, worker: int) -> None:
    """Be the nursery of a worker whose own process nobody may fork."""
    end_with_parent(worker)
    app = find_app(name)
    app.loader.import_default_modules()
    if has := unshareable():
        sys.exit(f"celery_poison: suspects cannot be tried in cells: the app has {has} once it is loaded")
    _serve(_socket.socket(fileno=orders), worker, app, is_fresh=True)


def unshareable() -> str:
    """Return what this process has that no forked process may share, where its app is not made for forks."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "threads"
    inherited = {os.fstat(fd).st_ino for fd in range(3) if _is_open(fd)}  # such as a journal's
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            found = os.fstat(fd)
            if stat.S_ISSOCK(found.st_mode) and found.st_ino not in inherited and _is_connected(fd):
                return "open connections"
    return ""


def _is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def _is_connected(fd: int) -> bool:
    with closing(_socket.socket(fileno=os.dup(fd))) as found:
        try:
            return found.type == socket.SOCK_STREAM and bool(found.getpeername() or True)
        except OSError:
            return False


def _fork() -> int:
    pid: int = unpatched("os", "fork")()
    return pid


def _serve(orders: Any, worker: int, app: Celery, *, is_fresh: bool = False) -> None:
    """Fork a watcher with a cell for every order, until the worker is gone."""
    os.setsid()
    end_with_parent(worker)
    before = procfs.name(worker)
    name(NURSERY)
    end_of_worker = os.pidfd_open(worker)
    handlers = {signum: signal.signal(signum, signal.SIG_IGN) for signum in (*_NOT_FOR_US, signal.SIGCHLD)}
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(orders, 1 << 16, 4, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return
        with suppress(OSError):  # no process can be forked: the worker hears that its sockets are closed
            if not _fork():
                orders.close()
                _be_watcher(Cell(pickle.loads(data), fds, app, is_fresh, handlers, before), end_of_worker)
        for fd in fds:
            os.close(fd)


class Cell(NamedTuple):
    """What becomes a cell below its watcher.

    Attributes:
        fds: of the watcher's socket, the cell's socket, the box, the worker's lease.
        handlers, name: of signals, and for ``ps``, that the worker had.
    """

    order: Order
    fds: list[int]
    app: Celery
    is_fresh: bool
    handlers: dict[signal.Signals, Any]
    name: str

    def be(self) -> int:
        name(self.name)
        for signum, handler in self.handlers.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        _, said, box, lease = self.fds
        talks = _socket.socket(fileno=said)
        return be_cell(self.order, self.app, talks, Box(box), lease, is_fresh=self.is_fresh)


def _be_watcher(cell: Cell, end_of_worker: int) -> NoReturn:
    """Be the watcher of a cell, and then, in another process, that cell."""
    control, *of_cell = cell.fds

    def fork() -> int:
        pid = _fork()
        for fd in of_cell if pid else (control, end_of_worker):
            os.close(fd)
        return pid

    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        talks = _socket.socket(fileno=control)
        if watch(talks, end_of_worker, cell.order.limit, cell.order.niceness, fork):
            talks.detach()
            code = cell.be()
        else:
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
