"""Starts workers and Flowers from a process that has imported Celery already: most of their start is that.

They are processes of their own all the same: forked, in a session of their own, children of the test's
process, which waits for them as for any other (``CLONE_PARENT``), and with an environment of their own in
/proc. What only a fresh interpreter can do is left to one: pools that patch before anything is imported,
workers that start with Celery's defaults, and workers without extensions that this process has.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NoReturn

from tests.apps.factory import EXTENSIONS

#: Everything that a worker imports whatever its app is; none of it looks at arguments or environment.
MODULES = (
    "billiard.popen_fork",
    "billiard.sharedctypes",
    "celery.__main__",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.bin.celery",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.events.state",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.control",
    "celery.worker.strategy",
    "importlib.readers",
    "kombu.matcher",
    "kombu.pidbox",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "redis.sentinel",
    "celery_poison.worker.bootsteps",
    "celery_poison.broker.transport",
    "celery_poison.cells.pool",
)
#: What a worker imports of extensions, unless they are left out.
OF_EXTENSIONS = (
    "black_box.sampler",
    "by_value.catching",
    "deploy_guard",
    "error_transactions",
    "holds.pausing",
    "items",
    "limits.limiting",
    "notify",
    "once",
    "outbox.relay",
    "outbox.storing",
    "proposals.proposals",
    "repro",
    "telling.teller",
)
#: What a Flower imports whatever its app is.
FLOWER = (
    "celery.__main__",
    "celery.app.control",
    "celery.app.events",
    "celery.bin.celery",
    "celery.backends.redis",
    "celery.events.state",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "flower.command",
    "celery_poison.broker.transport",
    "celery_poison.flower",
)
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_CLONE_PARENT = 0x8000
#: Its value is the room in which a worker's environment is shown, as /proc tells it.
_ROOM = "ENVIRONMENT_OF_A_WORKER"
_ROOM_SIZE = 100_000
_ENVIRONMENT = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")


class Child:
    """A process of ours, with what tests need of :class:`subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if timeout is not None:
            until = time.monotonic() + timeout
            while self.poll() is None:
                if time.monotonic() > until:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout)
                time.sleep(0.01)
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Starter:
    """Stands in for :class:`subprocess.Popen` where a worker, or a Flower, is started.

    Args:
        fits: whether such a command can be run by a process that has imported the modules.
        modules: what is imported beforehand.
    """

    def __init__(self, fits: Callable[[Sequence[str]], bool], modules: Sequence[str]) -> None:
        self._fits, self._modules = fits, modules
        self._owner = 0
        self._socket: socket.socket
        self._process: subprocess.Popen[bytes]

    def __call__(
        self, command: Sequence[str], *, cwd: Any, env: Mapping[str, str], stdout: IO[bytes], **options: Any
    ) -> Child | subprocess.Popen[bytes]:
        if not (_is_plain(command, env) and self._fits(command)):
            return subprocess.Popen(command, cwd=cwd, env=env, stdout=stdout, **options)
        if self._owner != os.getpid():
            self._open()
        order = json.dumps({"argv": command[3:], "cwd": str(cwd), "env": dict(env)}).encode()
        fds = array.array("i", [stdout.fileno()]).tobytes()
        header = len(order).to_bytes(8, "big")
        self._socket.sendmsg([header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        self._socket.sendall(order)
        answer = self._socket.recv(8, socket.MSG_WAITALL)
        if len(answer) < 8:
            raise RuntimeError("the process that starts workers has ended")
        return Child(int.from_bytes(answer, "big"))

    def _open(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", __name__, str(number), *self._modules]
            environment = {**os.environ, _ROOM: "-" * _ROOM_SIZE}
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[number]
            )
        self._owner = os.getpid()


def of_workers() -> Starter:
    """Return what starts workers; those without extensions that are here start afresh."""
    rooms = () if EXTENSIONS in os.environ else OF_EXTENSIONS
    extensions = (f"celery_poison.extensions.{room}" for room in rooms)
    return Starter(_is_forking_worker, (*MODULES, *extensions))


def of_flowers() -> Starter:
    return Starter(lambda command: "flower" in command, FLOWER)


def _is_forking_worker(command: Sequence[str]) -> bool:
    return "--without-mingle" in command and any(pool in command for pool in ("prefork", "threads", "solo"))


def _is_plain(command: Sequence[str], env: Mapping[str, str]) -> bool:
    is_celery = list(command[:3]) == [sys.executable, "-m", "celery"]
    as_usual = all(
        name in _ENVIRONMENT or env[name] == os.environ.get(name) for name in env if name.startswith("PYTHON")
    )
    as_usual = as_usual and env.get(EXTENSIONS) == os.environ.get(EXTENSIONS)
    return _CLONE is not None and is_celery and as_usual


# --- in the process that starts them ----------------------------------------------------------------


def _serve(number: int, modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    connection = socket.socket(fileno=number)
    while header := _receive_header(connection):
        length, output = header
        order = json.loads(connection.recv(length, socket.MSG_WAITALL))
        if _fork_sibling() == 0:
            _become(order, output, connection)
        os.close(output)


def _receive_header(connection: socket.socket) -> tuple[int, int] | None:
    data, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(4))
    if len(data) < 8:
        return None
    (_, _, fds), *_ = ancillary
    return int.from_bytes(data, "big"), array.array("i", fds)[0]


def _fork_sibling() -> int:
    """Fork a child of our own parent."""
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    pid = int(libc.syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid


def _show(environment: Mapping[str, str]) -> None:
    """Let /proc tell this environment: who looks for a fleet's processes looks there."""
    find = ctypes.PyDLL(None).getenv
    find.restype = ctypes.c_void_p
    shown = "".join(f"\0{name}={value}" for name, value in environment.items()).encode()
    ctypes.memmove(find(_ROOM.encode()), shown[:_ROOM_SIZE].ljust(_ROOM_SIZE, b"\0"), _ROOM_SIZE)


def _become(order: dict[str, Any], output: int, connection: socket.socket) -> NoReturn:
    """Run ``celery`` as ``python -m celery`` would; this process ends with it."""
    os.setsid()
    connection.sendall(os.getpid().to_bytes(8, "big"))  # from now on it is a group that can be killed
    os.dup2(output, 1)
    os.dup2(output, 2)
    connection.detach()
    os.closerange(3, 1024)
    os.chdir(order["cwd"])
    _show(order["env"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()  # as a process that begins reads its zone
    paths = [path for path in order["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [order["cwd"], *paths, *(path for path in sys.path if path not in paths)]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.argv = [sys.argv[0], *order["argv"]]
    runpy.run_module("celery", run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2:])
