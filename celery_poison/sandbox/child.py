"""A cell: a fresh process with the user's app, which runs one suspect after the other until one kills it.

``process.py`` opens it, through ``watcher.py``; it lives as long as those two. What it says is listed in
``trial.py``. What a suspect leaves in it could harm the next one, and would be blamed on that: then it ends.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import runpy
import signal
import socket
import sys
import time
from types import ModuleType
from typing import Any, NamedTuple

from billiard import current_process
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import MaybeEncodingError, soft_timeout_sighandler
from celery import Celery
from celery.app.utils import find_app

from celery_poison import causes, procfs
from celery_poison.forking import real_thread_starter
from celery_poison.requests import TaskDied, read_end
from celery_poison.sandbox.trial import Origin, Prepared, Setup, info_of, receive, send
from celery_poison.text import apps_given

#: Name of the module that a script becomes where it is loaded but not run, as multiprocessing calls it.
SCRIPT = "__mp_main__"


def main(sock: int, lease: int) -> None:
    """Be a cell.

    Args:
        sock: descriptor of the socket to the worker.
        lease: descriptor of the memory in which the worker keeps its lease.
    """
    host = socket.socket(fileno=sock)
    setup: Setup = receive(host)
    app = load(setup.origin)
    current_process().name = "Cell"  # in log lines
    prepared = setup.prepare(app, lease)
    # A service manager sends this to every process of its group when the worker is to end: that waits for
    # the trial. What the task itself has started is not affected.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    send(host, ("ready", os.getpid(), prepared.tasks))
    _serve(host, prepared)
    if real_thread_starter() is not None:
        os._exit(0)  # as a pool process: an interpreter ends badly beside a thread that gevent does not know


def _serve(host: socket.socket, prepared: Prepared) -> None:
    check = LeakCheck()
    unconfined = resource.getrlimit(resource.RLIMIT_DATA)
    stays = True
    while stays:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        try:
            arguments, alone = receive(host)
        except (EOFError, OSError):
            return
        send(host, ("accepted", os.getpid(), time.monotonic()))
        ok, value = _run(prepared, arguments, alone)
        info = value[1] if isinstance(value, tuple) and value[0] else value
        error = getattr(info, "exception", None)  # that it has raised
        error = getattr(error, "exc", error)
        is_confined = resource.getrlimit(resource.RLIMIT_DATA) != unconfined
        if is_confined and error is not None and read_end(error)[1] == causes.MEMORY_ERROR:
            # It met the limit that the watcher has set, and the watcher knows what that means.
            os.kill(os.getpid(), signal.SIGKILL)
        stays = not is_confined and not isinstance(error, TaskDied) and check.finds_nothing()
        try:
            data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            ok, data = False, pickle.dumps(info_of(MaybeEncodingError(error, value)))
        try:
            send(host, ("result", ok, data, stays))
        except OSError:
            return


def _run(prepared: Prepared, arguments: tuple[Any, ...], alone: int) -> tuple[bool, Any]:
    """Run one suspect; return whether it ran, and what a pool process would return or raise."""
    try:
        signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
        try:
            return True, prepared.run(arguments, alone)
        except Exception as error:
            return False, info_of(error)
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    except SoftTimeLimitExceeded as error:  # it came when the task had just ended
        return False, info_of(error)


#: Bytes that a suspect may leave behind for the next one.
_BYTES = 64 * 1024 * 1024


class LeakCheck:
    """Compares this process with what it was before its first suspect.

    What has been looked at is frozen: to collect the garbage among all objects of an app takes longer than
    most trials do, and what is new is little.
    """

    def __init__(self) -> None:
        self._hubs: list[Any] = []
        # What is frozen is not counted again: of greenlets each one that is found later is new.
        self._before = self._count()._replace(greenlets=0)

    def finds_nothing(self) -> bool:
        """Whether the last suspect has left nothing behind."""
        *counts, memory = self._count()
        *before, memory_before = self._before
        return memory <= memory_before + _BYTES and all(a <= b for a, b in zip(counts, before, strict=True))

    def _count(self) -> Remains:
        gc.collect()
        greenlets, helpers = self._greenlets_and_helpers()
        gc.freeze()
        threads, children = procfs.threads_and_children()
        return Remains(threads - helpers, greenlets, children, procfs.resident(os.getpid()))

    def _greenlets_and_helpers(self) -> tuple[int, int]:
        """Return how many new greenlets of this thread have not ended, and how many threads serve greenlets.

        Those are gevent's or eventlet's own, for calls that would block; they stay.
        """
        if real_thread_starter() is None:
            return 0, 0
        library: Any = sys.modules["greenlet"]
        here = _first_of_thread(library.getcurrent())
        found = [each for each in gc.get_objects() if isinstance(each, library.greenlet)]
        # Each thread that has greenlets has a hub.
        self._hubs += [each for each in found if hasattr(each, "_threadpool")]
        tpool = sys.modules.get("eventlet.tpool")
        helpers = len(tpool._threads) if tpool is not None else 0
        helpers += sum(hub._threadpool.size for hub in self._hubs if hub._threadpool is not None)
        return sum(not each.dead and _first_of_thread(each) is here for each in found), helpers


class Remains(NamedTuple):
    """What there is in this process besides the one who asks; memory in bytes."""

    threads: int
    greenlets: int
    children: int
    memory: int


def _first_of_thread(greenlet: Any) -> Any:
    while greenlet.parent is not None:
        greenlet = greenlet.parent
    return greenlet


# --- which app it loads ---------------------------------------------------------------------------------


def origin_of(app: Celery) -> Origin | None:
    """Return where ``app`` comes from; None when no other process could load it."""
    is_celery = os.path.basename(sys.argv[0]).startswith(("celery", "__main__"))
    if is_celery and (name := next(apps_given(), "")):
        return Origin(name=name)
    for module in sorted(sys.modules.values(), key=_is_script):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is app and not attribute.startswith("_") and (found := _within(module, attribute)):
                return found
    return None


def _is_script(module: ModuleType) -> bool:
    return getattr(module, "__name__", "") in ("__main__", SCRIPT)


def _within(module: ModuleType, attribute: str) -> Origin | None:
    if module.__name__.partition(".")[0] in ("celery", "celery_poison"):
        return None  # where Celery remembers it
    if not _is_script(module):
        return Origin(name=f"{module.__name__}:{attribute}")
    spec, script = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:  # run as ``python -m``
        return Origin(name=f"{spec.name}:{attribute}")
    return Origin(script=os.path.abspath(script), attribute=attribute) if script else None


def load(origin: Origin) -> Celery:
    """Load the app in a fresh process.

    Raises:
        Exception: whatever the user's modules raise.
    """
    if origin.name:
        app: Any = find_app(origin.name)
    else:  # what the script does only as __main__ is not done again
        content = runpy.run_path(origin.script, run_name=SCRIPT)
        module = ModuleType(SCRIPT)
        module.__dict__.update(content)
        sys.modules["__main__"] = sys.modules[SCRIPT] = module
        app = content[origin.attribute]
    if not isinstance(app, Celery):
        raise TypeError(f"{origin} is not a Celery app but {app!r}")
    return app
