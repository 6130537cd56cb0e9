"""Keeps the pool's forks away from what this worker's own threads are doing.

A process that is forked while another thread holds a lock inherits that lock for ever: a new pool
process would hang before its first task, for example on the connection pool that a thread was using.
So the threads work under one lock of ours, and a fork waits for it, though never for long.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

#: Seconds that a fork waits for a thread at most; a stalled Redis must not keep the pool from growing.
PATIENCE = 1.0

_changed = threading.Condition()
_working = 0


def real_thread_starter() -> Any:
    """Return the function that starts a real thread where greenlets replaced threads; None where none did."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("threading"):
        return gevent.get_original("_thread", "start_new_thread")
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        return eventlet.original("_thread").start_new_thread
    return None


def unpatched(module: str, name: str) -> Any:
    """Return an object of the standard library as it was before gevent or eventlet replaced it."""
    if "gevent.monkey" in sys.modules:
        return sys.modules["gevent.monkey"].get_original(module, name)
    if "eventlet.patcher" in sys.modules:
        return getattr(sys.modules["eventlet.patcher"].original(module), name)
    return getattr(sys.modules[module], name)


def have_own_hub() -> None:
    """Give this process, which was forked, a loop of its own for its greenlets, if it has such."""
    if "gevent" in sys.modules:
        sys.modules["gevent"].reinit()
    with suppress(KeyError, AttributeError):
        del sys.modules["eventlet.hubs"]._threadlocal.hub


@contextmanager
def no_fork() -> Iterator[None]:
    """While any thread is in here, this process does not fork (but see ``PATIENCE``)."""
    global _working
    if real_thread_starter() is not None:
        yield  # pools of greenlets do not fork, and a real thread may not wait for a greenlet's lock
        return
    with _changed:
        _working += 1
    try:
        yield
    finally:
        with _changed:
            _working -= 1
            _changed.notify_all()


#: Owners of connections that tell a server that this process lives, and what returns the socket of each.
_signs_of_life: WeakKeyDictionary[Any, Callable[[Any], Any]] = WeakKeyDictionary()


def keep_from_forks(owner: Any, socket_of: Callable[[Any], Any]) -> None:
    """Close, in each process forked here, the socket that ``socket_of(owner)`` returns then.

    A process that a task leaves running would keep its dead worker alive by it.
    """
    _signs_of_life[owner] = socket_of


def _close_inherited() -> None:
    for owner, socket_of in list(_signs_of_life.items()):
        with suppress(AttributeError, OSError):  # it has none
            # This descriptor only: a shutdown would reach the other process. And at once: gevent's
            # ``close`` waits for its loop, which need not run here.
            unpatched("os", "close")(socket_of(owner).detach())


def _before_fork() -> None:
    _changed.acquire()  # held until the fork is over, so that no other fork begins meanwhile
    _changed.wait_for(lambda: _working == 0, timeout=PATIENCE)


def _after_fork_in_child() -> None:
    global _changed, _working
    _changed, _working = threading.Condition(), 0
    _close_inherited()


os.register_at_fork(
    before=_before_fork, after_in_parent=lambda: _changed.release(), after_in_child=_after_fork_in_child
)
