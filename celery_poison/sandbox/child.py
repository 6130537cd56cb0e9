"""A cell: a fresh process with the user's app, which runs one suspect after the other until one kills it.

``process.py`` opens it, through ``watcher.py``; it lives as long as those two. What it says is listed in
``channel.py``.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import time
from typing import Any

from billiard import current_process
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import MaybeEncodingError, soft_timeout_sighandler

from celery_poison.forking import real_thread_starter
from celery_poison.requests import TaskDied
from celery_poison.sandbox import channel
from celery_poison.sandbox.channel import Prepared, Setup
from celery_poison.sandbox.leaks import LeakCheck
from celery_poison.sandbox.loading import load


def main(sock: int, lease: int) -> None:
    """Be a cell.

    Args:
        sock: descriptor of the socket to the worker.
        lease: descriptor of the memory in which the worker keeps its lease.
    """
    host = socket.socket(fileno=sock)
    setup: Setup = channel.receive(host)
    app = load(setup.origin)
    current_process().name = "Cell"  # in log lines
    prepared = setup.prepare(app, lease)
    # A service manager sends this to every process of its group when the worker is to end: that waits for
    # the trial. What the task itself has started is not affected.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    channel.send(host, ("ready", os.getpid(), prepared.tasks))
    _serve(host, prepared)
    if real_thread_starter() is not None:
        os._exit(0)  # as a pool process: an interpreter ends badly beside a thread that gevent does not know


def _serve(host: socket.socket, prepared: Prepared) -> None:
    check = LeakCheck()
    stays = True
    while stays:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        try:
            arguments, alone = channel.receive(host)
        except (EOFError, OSError):
            return
        channel.send(host, ("accepted", os.getpid(), time.monotonic()))
        ok, value = _run(prepared, arguments, alone)
        stays = not _is_death(value) and check.finds_nothing()
        try:
            data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            ok, data = False, pickle.dumps(channel.info_of(MaybeEncodingError(error, value)))
        try:
            channel.send(host, ("result", ok, data, stays))
        except OSError:
            return


def _run(prepared: Prepared, arguments: tuple[Any, ...], alone: int) -> tuple[bool, Any]:
    """Run one suspect; return whether it ran, and what a pool process would return or raise."""
    try:
        signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
        try:
            return True, prepared.run(arguments, alone)
        except Exception as error:
            return False, channel.info_of(error)
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    except SoftTimeLimitExceeded as error:  # it came when the task had just ended
        return False, channel.info_of(error)


def _is_death(value: Any) -> bool:
    if not isinstance(value, tuple) or not value[0]:
        return False
    error = value[1].exception
    return isinstance(getattr(error, "exc", error), TaskDied)
