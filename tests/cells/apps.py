"""Tasks that do to their surroundings what only a cell may suffer."""

from __future__ import annotations

import atexit
import mmap
import os
import resource
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from billiard import current_process
from celery import Celery, signals
from celery.exceptions import SoftTimeLimitExceeded

from celery_poison import guarded
from celery_poison.basics import procfs
from celery_poison.cells.watcher import WATCHER
from tests.apps.factory import build_app
from tests.apps.marks import Marks, marks

#: Where this is set, a forked process is not ready before there is a file of that name.
BEGINS_WITH = "POISON_TEST_BEGINS_WITH"


#: When a process that loads the app opens a connection: at its ``import``, or at ``worker_init``.
OPENS = "POISON_TEST_OPENS"
opened: list[Any] = []


def _open(when: str) -> None:
    if os.environ.get(OPENS) == when:
        opened.append(socket.create_connection(urlsplit(os.environ["MARKS_URL"]).netloc.split(":")))


#: What a receiver of worker_init has left in this process; a pool process inherits it by the fork.
prepared: list[Any] = []


@signals.worker_process_init.connect
def _begin(**_: Any) -> None:
    here().leave("loaded", str(os.getpid()), "process_init")
    while (path := os.environ.get(BEGINS_WITH)) and not os.path.exists(path):
        time.sleep(0.01)


@signals.worker_init.connect
def _prepare(sender: Any, **_: Any) -> None:
    prepared.append([sender.hostname, os.getpid()])
    _open("worker_init")


@signals.worker_process_shutdown.connect
def _end(**_: Any) -> None:
    here().leave("loaded", str(os.getpid()), "process_shutdown")


def here() -> Marks:
    return marks(os.environ["MARKS_URL"])


def _in_cell() -> bool:
    """Whether this process's parent is a watcher: nothing else may be harmed by a test."""
    return procfs.name(os.getppid()) == WATCHER


def _fork_and_leave() -> None:
    """Leave a process in a session of its own, with all that this one has open, until it is told to end."""
    if not os.fork():
        os.setsid()
        while not Marks(os.environ["MARKS_URL"]).repaired:
            time.sleep(0.1)
        os._exit(0)


def _die(what: str) -> None:  # noqa: C901 - a list of ways to die, not a decision
    if not _in_cell():
        return
    match what:
        case "kill-parent":
            os.kill(os.getppid(), signal.SIGKILL)
        case "kill-parents-group":
            os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
        case "eat-memory":
            eaten = []
            while True:
                eaten.append(bytearray(8 << 20))
                time.sleep(0.005)
        case "close-everything":
            os.closerange(3, 256)
            time.sleep(600)
        case "stop-watcher":
            os.kill(os.getppid(), signal.SIGSTOP)
        case "when-repaired":
            while not here().repaired:
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill-session":
            for pid in procfs.members_of_session(os.getsid(0)):
                os.kill(pid, signal.SIGKILL)
        case "kill-worker":
            os.kill(prepared[0][1], signal.SIGKILL)
        case "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault" | "abort":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), signal.SIGSEGV if what == "segfault" else signal.SIGABRT)
        case "os-exit":
            os._exit(7)
        case "forks-and-leaves":
            _fork_and_leave()
            return
        case "exit":
            raise SystemExit(3)
        case "memory-error":
            raise MemoryError
    time.sleep(600)  # the kernel takes a moment to end a process whose watcher has ended


def _take(how: str) -> None:
    """Use up the memory as fast as it goes, or only reserve it."""
    taken: Any = bytearray()
    match how:
        case "steps":
            taken = [b"x" * (64 << 20) for _ in range(32)]
        case "at-once":
            taken = b"x" * (2 << 30)
        case "grows":
            while len(taken) < 2 << 30:
                taken += b"x" * (1 << 20)
        case "reserves":
            taken = mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE)
        case "catches":
            # So slowly that a watcher sees it on a busy machine: if it is late, the suspect is stopped before
            # any memory is refused (docs/known-limits.md).
            with suppress(MemoryError):
                taken = [(time.sleep(0.02), b"x" * (8 << 20)) for _ in range(256)]
    del taken


def _may_set_signals() -> bool:
    """Whether this is the main thread of its process."""
    try:
        signal.signal(signal.SIGUSR2, signal.getsignal(signal.SIGUSR2))
    except ValueError:
        return False
    return True


def register(app: Celery) -> Celery:  # noqa: C901 - a list of tasks, not a decision
    @guarded
    @app.task(bind=True, shared=False, name="trial.dies")
    def dies(self: Any, what: str) -> None:
        here().leave("dies", self.request.id, "start", what)
        _die(what)
        here().leave("dies", self.request.id, "end", what)

    @guarded
    @app.task(bind=True, shared=False, name="trial.sleeps")
    def sleeps(self: Any, seconds: float) -> None:
        here().leave("sleeps", self.request.id, "start")
        time.sleep(seconds)

    @guarded
    @app.task(bind=True, shared=False, name="trial.hangs")
    def hangs(self: Any, n: int = 0) -> int:
        """Hangs until it is ended, but only once."""
        seen = {mark.id for mark in here().all("hangs", "start")}
        here().leave("hangs", self.request.id, "start", n)
        if self.request.id not in seen:
            time.sleep(600)
        return n

    @guarded
    @app.task(bind=True, shared=False, name="trial.tells")
    def tells(self: Any, n: int = 0) -> dict[str, Any]:
        here().leave("tells", self.request.id, "start", n)
        return {
            "pid": os.getpid(),
            "in_cell": _in_cell(),
            "on_trial": self.request.poison.on_trial,
            "prepared": prepared,
            "may_set_signals": _may_set_signals(),
            "argv": sys.argv,
            "process": current_process().name,
            "index": getattr(current_process(), "index", -1),
        }

    @guarded
    @app.task(bind=True, shared=False, name="trial.leaves_a_thread")
    def leaves_a_thread(self: Any) -> int:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        return os.getpid()

    @guarded
    @app.task(bind=True, shared=False, name="trial.waits")
    def waits(self: Any, n: int = 0) -> str:
        here().leave("waits", self.request.id, "start", n)
        try:
            while not here().repaired:
                time.sleep(0.02)
        except SoftTimeLimitExceeded:
            return "soft"
        here().leave("waits", self.request.id, "end", n)
        return "repaired"

    @guarded
    @app.task(bind=True, shared=False, name="trial.takes")
    def takes(self: Any, how: str) -> str:
        here().leave("takes", self.request.id, "start", how)
        _take(how)
        return how

    @guarded
    @app.task(bind=True, shared=False, name="trial.needs")
    def needs(self: Any, mebibytes: int) -> int:
        here().leave("needs", self.request.id, "start", mebibytes)
        taken = [b"x" * (1 << 20) for _ in range(mebibytes)]
        time.sleep(1.0)  # long enough for the watcher to see it
        return len(taken)

    @guarded
    @app.task(bind=True, shared=False, name="trial.grows")
    def grows(self: Any, mebibytes: int) -> int:
        here().leave("grows", self.request.id, "start", mebibytes)
        taken = []
        for _ in range(mebibytes):
            taken.append(b"x" * (1 << 20))
            time.sleep(0.005)
        return len(taken)

    @guarded
    @app.task(bind=True, shared=False, name="trial.reports")
    def reports(self: Any, *more: str) -> int:
        """Leaves it to the background to report, as who sends errors and spans to a server far away."""
        id = self.request.id

        def later(who: str) -> None:
            time.sleep(0.5)
            here().leave("reports", id, "end", who)

        def at_exit() -> None:
            here().leave("reports", id, "end", "atexit")
            os.kill(os.getpid(), signal.SIGKILL)

        here().leave("reports", id, "start")
        if more:
            threading.Thread(target=later, args=("thread",)).start()
            atexit.register(at_exit)
        else:
            threading.Thread(target=later, args=("daemon",), daemon=True).start()
        return os.getpid()

    @guarded
    @app.task(bind=True, shared=False, name="trial.ends")
    def ends(self: Any, how: str) -> str:
        here().leave("ends", self.request.id, "start", how)
        match how:
            case "raises":
                raise LookupError("an ordinary bug")
            case "retries":
                if not self.request.retries:
                    raise self.retry(countdown=0)
            case "retries, then dies":
                if not self.request.retries:
                    raise self.retry(countdown=0)
                _die("sigkill")
            case "is replaced, then dies":
                raise self.replace(self.s("dies"))
            case "dies":
                _die("sigkill")
            case "rolls-back":
                if not self.request.poison.failures:
                    self.rollback("not now")
        return how

    return app


def build(environ: Any, *, current: bool = False) -> Celery:
    if current:
        _open("import")
    return register(build_app(environ, current=current))
